import dataclasses

import pytest

from commitfs.format.checksum import crc32c
from commitfs.format.record import COMMIT, LOG_START, Record, pack, parse
from commitfs.format.slot import SLOT_SIZE, Slot, Unreadable, newest, pack_slot, parse_slot
from commitfs.native import crc32c as fast

HEAD = Record(COMMIT, 1, LOG_START, 3, 99, 7, 10, 11, 12, 13, 14, 15, 2, 17, 18, 19, 20, 21, 22, 0)
HEAD = Record._make(parse(pack(HEAD, crc32c)[0], crc32c) or ())
SLOT = Slot(5, 99, bytes(range(16)), 512, 1, LOG_START, HEAD, compat=1, ro_compat=2)


def resealed(data: bytearray) -> bytes:
    data[508:] = crc32c(data[:508]).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    "slot", [SLOT, dataclasses.replace(SLOT, head=None), dataclasses.replace(SLOT, align=8)]
)
def test_packs_and_parses(slot: Slot) -> None:
    data = pack_slot(slot, crc32c)
    assert len(data) == SLOT_SIZE
    assert parse_slot(data, crc32c) == slot


def test_the_earlier_format_has_heads_without_records() -> None:
    head = Record._make(
        parse(pack(HEAD._replace(session=0), crc32c, earlier=True)[0], crc32c, earlier=True) or ()
    )
    for earlier in (True, False):
        slot = dataclasses.replace(SLOT, head=head, earlier=earlier)
        data = pack_slot(slot, crc32c)
        assert data[:8] == (b"PURETRE2" if earlier else b"PURETRE3")
        assert data[128:132] == b"PTR2"
        assert parse_slot(data, crc32c) == slot
        assert not slot.head_has_record
    assert SLOT.head_has_record


def test_fields_lie_where_the_document_draws_them() -> None:
    slot = Slot(24, 32, bytes(range(40, 56)), 4096, 56, 64, HEAD._replace(store=32), compat=8, ro_compat=12)
    data = pack_slot(slot, crc32c)
    assert data[:8] == b"PURETRE3"
    for at, size in ((8, 4), (12, 4), (24, 8), (32, 8), (56, 8), (64, 8)):
        assert int.from_bytes(data[at : at + size], "little") == at, f"field at {at}"
    assert data[16:24] == bytes(4) + (4096).to_bytes(4, "little")
    assert data[40:56] == bytes(range(40, 56))
    assert data[72:128] == bytes(56)
    assert data[128:256] == pack(HEAD._replace(store=32), crc32c)[0]
    assert data[256:508] == bytes(252)
    assert int.from_bytes(data[508:], "little") == crc32c(data[:508])


def test_no_bit_can_be_turned_over() -> None:
    data = pack_slot(SLOT, crc32c)
    for bit in range(SLOT_SIZE * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert parse_slot(flipped, fast) in (Unreadable.DAMAGED, Unreadable.UNKNOWN, Unreadable.FOREIGN), bit


def test_is_not_read_from_less() -> None:
    data = pack_slot(SLOT, crc32c)
    assert all(parse_slot(data[:size], fast) is Unreadable.FOREIGN for size in range(SLOT_SIZE))


def test_what_others_wrote_is_foreign() -> None:
    assert parse_slot(b"SQLite format 3\0".ljust(SLOT_SIZE), crc32c) is Unreadable.FOREIGN
    assert parse_slot(bytes(SLOT_SIZE), crc32c) is Unreadable.FOREIGN


def test_what_is_newer_is_told_from_what_is_damaged() -> None:
    newer = bytearray(pack_slot(SLOT, crc32c))
    newer[7] = ord("4")
    assert parse_slot(newer, crc32c) is Unreadable.UNKNOWN
    assert parse_slot(resealed(newer), crc32c) is Unreadable.NEWER
    incompatible = bytearray(pack_slot(SLOT, crc32c))
    incompatible[16] = 1
    assert parse_slot(incompatible, crc32c) is Unreadable.DAMAGED
    assert parse_slot(resealed(incompatible), crc32c) is Unreadable.NEWER


def test_the_higher_sequence_is_the_newer() -> None:
    older = dataclasses.replace(SLOT, sequence=4)
    assert newest([older, SLOT]) is SLOT
    assert newest([SLOT, older]) is SLOT
    assert newest([Unreadable.DAMAGED, older]) is older
    assert newest([Unreadable.DAMAGED, Unreadable.FOREIGN]) is None
