"""The writer's side of the two head slots."""

import dataclasses
import threading
from collections.abc import Sequence
from typing import Final

from commitfs import native
from commitfs.format.record import LOG_START, Record
from commitfs.format.slot import SLOT_OFFSETS, Slot, Unreadable, pack_slot
from commitfs.store.file import StoreFile

COMMITS_APART: Final = 16
BYTES_APART: Final = 4 << 20
"""A slot is due after so many commits or log bytes, so that an open has no more than that to walk."""


class Heads:
    """Writes the newest acknowledged commit into the older slot.

    S7: a slot is written only after the last write of the other was synced: `write` returns or raises
    before the next begins, and the store latches when it raises.
    """

    def __init__(self, file: StoreFile, slots: Sequence[Slot | Unreadable], newest: Slot) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._newest = newest
        self._target = next((at for at, slot in enumerate(slots) if slot is not newest), 0)
        """Which slot is the older one."""

    @property
    def named(self) -> int:
        """Id of the commit the newest slot names."""
        return self._newest.head.id if self._newest.head is not None else 0

    @property
    def newest(self) -> Slot:
        return self._newest

    def due(self, head: Record) -> bool:
        """Whether a walk from the newest slot to `head` is long enough for another slot write."""
        named = self._newest.head
        start = named.end if named is not None else LOG_START
        commits = head.id - self.named
        return commits >= COMMITS_APART or (commits > 0 and head.end - start >= BYTES_APART)

    def write(self, head: Record | None, *, oldest: tuple[int, int]) -> None:
        """Name `head`, acknowledged, in the older slot, and the id and offset of the oldest commit;
        durable when this returns.  Thread-safe."""
        with self._lock:
            slot = dataclasses.replace(
                self._newest,
                sequence=self._newest.sequence + 1,
                head=head,
                oldest_id=oldest[0],
                oldest_offset=oldest[1],
                earlier=False,
            )
            self._file.write_aside(pack_slot(slot, native.crc32c), SLOT_OFFSETS[self._target])
            self._newest = slot
            self._target = 1 - self._target


__all__ = ["BYTES_APART", "COMMITS_APART", "Heads"]
