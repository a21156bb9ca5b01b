"""The two head slots: 512 bytes at 0 and at 4096 (docs/format.md, "Slot").

A slot names a commit that was acknowledged, so that a walk need not begin at the start of the log.
Only `parse_slot` makes a `Slot` from bytes; what is not one is an `Unreadable` and says why.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from commitfs.format.checksum import Checksum
from commitfs.format.record import RECORD_SIZE, Record, pack, parse
from commitfs.types import Buffer

SLOT_SIZE: Final = 512
SLOT_OFFSETS: Final = (0, 4096)
MAGIC: Final = b"PURETRE3"
EARLIER_MAGIC: Final = b"PURETRE2"
_FAMILY: Final = b"PURETRE"

RO_COMPAT_KNOWN: Final = 0
INCOMPAT_KNOWN: Final = 0
ALIGNMENTS: Final = (8, 512, 4096)
DEFAULT_ALIGN: Final = 8

_HEADER: Final = struct.Struct("<8sIIIIQQ16sQQ")
_HEAD_AT: Final = 128
_CRC_AT: Final = SLOT_SIZE - 4
assert _HEADER.size == 72
_NO_HEAD: Final = bytes(RECORD_SIZE)


@dataclass(frozen=True, slots=True)
class Slot:
    sequence: int
    """One more at every slot write of a store; the higher of two is the newer."""
    store: int
    """Store number, which every record repeats."""
    uuid: bytes
    """16 bytes; stays when the store number is drawn anew."""
    align: int
    """Groups end at a multiple of this: one of ALIGNMENTS."""
    oldest_id: int
    """Oldest commit kept, 0 as long as there is none; and the offset of its record."""
    oldest_offset: int
    head: Record | None
    """The commit named, as its record says; None: no commit yet."""
    compat: int = 0
    ro_compat: int = 0
    earlier: bool = False
    """A slot of PURETRE2, whose head has no record in the log."""

    @property
    def head_has_record(self) -> bool:
        return self.head is not None and self.head.session != 0


class Unreadable(Enum):
    """Why 512 bytes are no slot."""

    FOREIGN = "not written by commitfs"
    NEWER = "of a format this version does not know"
    UNKNOWN = "of a format this version does not know, or damaged"
    DAMAGED = "damaged"


def pack_slot(slot: Slot, checksum: Checksum) -> bytes:
    data = bytearray(SLOT_SIZE)
    _HEADER.pack_into(
        data,
        0,
        EARLIER_MAGIC if slot.earlier else MAGIC,
        slot.compat,
        slot.ro_compat,
        0,
        slot.align,
        slot.sequence,
        slot.store,
        slot.uuid,
        slot.oldest_id,
        slot.oldest_offset,
    )
    if slot.head is not None:
        head, _ = pack(slot.head, checksum, earlier=not slot.head_has_record)
        data[_HEAD_AT : _HEAD_AT + RECORD_SIZE] = head
    data[_CRC_AT:] = checksum(memoryview(data)[:_CRC_AT]).to_bytes(4, "little")
    return bytes(data)


def parse_slot(data: Buffer, checksum: Checksum) -> Slot | Unreadable:
    if len(data) < SLOT_SIZE:
        return Unreadable.FOREIGN
    view = memoryview(data)[:SLOT_SIZE]
    magic, compat, ro_compat, incompat, align, sequence, store, uuid, oldest_id, oldest_offset = (
        _HEADER.unpack_from(view)
    )
    if not magic.startswith(_FAMILY):
        return Unreadable.FOREIGN
    known = magic in (MAGIC, EARLIER_MAGIC)
    if checksum(view[:_CRC_AT]) != int.from_bytes(view[_CRC_AT:], "little"):
        return Unreadable.DAMAGED if known else Unreadable.UNKNOWN
    if not known or incompat & ~INCOMPAT_KNOWN or align not in ALIGNMENTS:
        return Unreadable.NEWER
    raw_head = bytes(view[_HEAD_AT : _HEAD_AT + RECORD_SIZE])
    head = None
    if raw_head != _NO_HEAD:
        found = parse(raw_head, checksum) or parse(raw_head, checksum, earlier=True)
        if found is None or found.store != store:
            return Unreadable.NEWER
        head = Record._make(found)
    return Slot(
        sequence=sequence,
        store=store,
        uuid=uuid,
        align=align,
        oldest_id=oldest_id,
        oldest_offset=oldest_offset,
        head=head,
        compat=compat,
        ro_compat=ro_compat,
        earlier=magic == EARLIER_MAGIC,
    )


def newest(slots: Sequence[Slot | Unreadable]) -> Slot | None:
    """The readable slot that was written last; of equal ones one of the present format."""
    readable = [slot for slot in slots if isinstance(slot, Slot)]
    return max(readable, key=lambda slot: (slot.sequence, not slot.earlier), default=None)


__all__ = [
    "ALIGNMENTS",
    "DEFAULT_ALIGN",
    "EARLIER_MAGIC",
    "MAGIC",
    "SLOT_OFFSETS",
    "SLOT_SIZE",
    "Slot",
    "Unreadable",
    "newest",
    "pack_slot",
    "parse_slot",
]
