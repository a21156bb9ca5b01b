"""PURETRE2, the format before records: bytes over the tail's zeros, heads in the slots only.

A commit was its bytes at the published end and its head in the older slot, made durable by one sync of
both ranges.  Nothing but the slots says what is in the file, so only the newest whole commit of one can
be found.  Reading it is recover.py's work, with `whole` from here; the first writer continues it with
records.  `EarlierWriter` still writes it, as the baseline the records are measured against.
"""

from collections.abc import Callable, Sequence

from commitfs import native
from commitfs.errors import FormatError
from commitfs.format.node import NO_ROOT, Root
from commitfs.format.record import COMMIT, LOG_START, RECORD_SIZE, Record, root_word
from commitfs.format.slot import SLOT_OFFSETS, SLOT_SIZE, Slot, newest, pack_slot, parse_slot
from commitfs.store.file import StoreFile, open_file
from commitfs.store.tail import Tail
from commitfs.types import Buffer, CommitId


def whole(file: StoreFile, slot: Slot) -> bool:
    """Whether the bytes of the commit that a PURETRE2 slot names are there: head and bytes were written
    under one sync, so either may have been lost without the other."""
    head = slot.head
    if head is None:
        return True
    data = file.pread(head.length, head.bytes_offset)
    return len(data) == head.length and native.crc32c(data) == head.bytes_crc


class EarlierWriter:
    """Writes commits to a PURETRE2 file, one at a time."""

    def __init__(self, path: str, *, opener: Callable[[str, bool], StoreFile] = open_file) -> None:
        self._file = opener(path, True)
        slots = [parse_slot(self._file.pread(SLOT_SIZE, at), native.crc32c) for at in SLOT_OFFSETS]
        usable = [
            slot for slot in slots if isinstance(slot, Slot) and slot.earlier and whole(self._file, slot)
        ]
        slot = newest(usable)
        if slot is None:
            self._file.close()
            raise FormatError(f"{path} is not a store of the earlier format")
        self._slot = slot
        self._target = 1 - slots.index(slot)
        self.head = slot.head
        self._end = slot.head.end if slot.head is not None else LOG_START
        self._file.truncate(self._end)
        self._tail = Tail(self._file, self._end)

    def commit(self, buffers: Sequence[Buffer], *, root: Root = NO_ROOT, time_ns: int = 0) -> CommitId:
        """Write one commit, durable when this returns; its id.  OSError."""
        head = self.head
        length = sum(map(len, buffers))
        crc = 0
        for data in buffers:
            crc = native.crc32c(data, crc)
        record = Record(
            kind=COMMIT,
            flags=0,
            offset=self._end - RECORD_SIZE,  # where its record would lie
            id=head.id + 1 if head is not None else 1,
            store=self._slot.store,
            session=0,
            length=length,
            bytes_crc=crc,
            synced=0,
            prev=0,
            skip=0,
            parent=0,
            parent_id=head.id if head is not None else 0,
            root_offset=root.offset,
            root_word=root_word(root),
            root_crc=root.crc,
            time_ns=max(time_ns, head.time_ns) if head is not None else time_ns,
            branch=0,
            chain=0,
            crc=0,
        )
        slot = Slot(
            sequence=self._slot.sequence + 1,
            store=self._slot.store,
            uuid=self._slot.uuid,
            align=self._slot.align,
            oldest_id=record.id,
            oldest_offset=0,
            head=record,
            earlier=True,
        )
        if self._tail.low(record.end):
            self._tail.extend(record.end)
        self._file.write(b"".join(buffers), self._end)
        self._file.write(pack_slot(slot, native.crc32c), SLOT_OFFSETS[self._target])
        self._file.sync()
        self._slot = slot
        self._target = 1 - self._target
        self.head = record
        self._end = record.end
        return CommitId(record.id)

    def close(self) -> None:
        self._file.close()


__all__ = ["EarlierWriter", "whole"]
