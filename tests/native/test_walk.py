"""The walk in C along records made by hand here, against the rule of docs/format.md."""

import struct
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitfs.format.record import WalkState
from commitfs.native import crc32c, walk

COMMIT, STAGE, PAD = 1, 2, 3
FIRST, LAST = 1, 2
STORE, SESSION = 0x1122334455667788, 0x99AABBCCDDEEFF00
START = 8192

_RECORD = struct.Struct("<4sBBHQQQQIIQQQQQQIIqIIII")
assert _RECORD.size == 128


@dataclass(frozen=True)
class Rec:
    """What a test wants to say of a record; place, id and chain come from the log it stands in."""

    kind: int = COMMIT
    data: bytes = b""
    session: int = SESSION
    flags: int = 0
    skip: int = 0
    """Bytes of a stage or a pad, which are not there to be read."""


class Log:
    """Records one behind the other."""

    def __init__(self, *records: Rec) -> None:
        self.data = bytearray()
        self.id = self.chain = self.newest = 0
        self.states = [self.state()]
        for record in records:
            self.add(record)

    def state(self) -> WalkState:
        return WalkState(START + len(self.data), STORE, self.session, self.chain, self.id, self.newest)

    session = 0

    def add(self, r: Rec) -> None:
        offset = START + len(self.data)
        self.id += r.kind == COMMIT
        length, crc = (len(r.data), crc32c(r.data)) if r.kind == COMMIT else (r.skip, 0)
        head = (b"PTR3", 1, r.kind, r.flags, offset, self.id, STORE, r.session, length, crc)
        rest = (7, self.newest, 3, 4, 5, 6, 0x01000800, 9, -1, 0, 0)
        record = _RECORD.pack(*head, *rest, self.chain, 0)
        self.chain = crc32c(record[:-4])
        self.data += record[:-4] + struct.pack("<I", self.chain)
        self.data += r.data if r.kind == COMMIT else bytes(r.skip)
        self.data += bytes(-len(self.data) % 8)
        self.session = r.session
        if r.kind == COMMIT:
            self.newest = offset
        self.states.append(self.state())

    def walked(self, data: bytes | None = None) -> tuple[int, int, int]:
        """need, records and commits of a walk from the start over `data`."""
        state = WalkState(START, STORE, 0, 0, 0, 0)
        result = walk(self.data if data is None else data, START, state)
        assert state == self.states[result.records]
        return result.need, result.records, result.commits


SAMPLE = (
    Rec(data=b"first", flags=FIRST),
    Rec(data=b"x" * 1000),
    Rec(STAGE, skip=4096),
    Rec(data=b"", flags=LAST),
    Rec(PAD, skip=384),
    Rec(data=b"another session", session=5, flags=FIRST | LAST),
    Rec(data=b"tail", session=5),
)


def test_passes_what_fits() -> None:
    log = Log(*SAMPLE)
    assert log.walked() == (128, 7, 5)
    assert log.walked(bytes(log.data) + bytes(4096)) == (0, 7, 5)


def test_asks_for_what_is_missing_and_goes_on_from_there() -> None:
    """However the log is cut into windows, the walk is the same."""
    log = Log(*SAMPLE)
    state = WalkState(START, STORE, 0, 0, 0, 0)
    seen = commits = 0
    want = 128
    while state.offset + want <= START + len(log.data):
        begin = state.offset - START
        result = walk(bytes(log.data)[begin : begin + want], state.offset, state)
        seen += result.records
        commits += result.commits
        assert state == log.states[seen]
        want = result.need
        assert want
    assert (seen, commits, want) == (7, 5, 128)


@given(cut=st.integers(0, 8000))
def test_a_cut_window_asks_for_the_next_record_or_its_bytes(cut: int) -> None:
    log = Log(*SAMPLE)
    state = WalkState(START, STORE, 0, 0, 0, 0)
    cut = min(cut, len(log.data))
    result = walk(bytes(log.data)[:cut], START, state)
    begin = state.offset - START
    assert state == log.states[result.records]
    assert begin + result.need > cut
    if result.need > 128:
        assert begin + 128 <= cut
        assert result.need == 128 + len(SAMPLE[result.records].data)
    else:
        assert begin + 128 > cut


def test_a_window_may_begin_before_the_walk() -> None:
    log = Log(*SAMPLE)
    state = replace(log.states[3])
    assert walk(log.data, START, state).records == 4
    with pytest.raises(ValueError, match="behind"):
        walk(log.data, START + 8, replace(log.states[0]))


def test_an_empty_window_asks_for_a_record() -> None:
    assert Log().walked(b"") == (128, 0, 0)


def test_every_bit_of_a_record_and_its_bytes_counts() -> None:
    """Whatever bit is flipped, the walk ends before it.  (Padding behind the bytes is not covered.)"""
    log = Log(Rec(data=b"zero", flags=FIRST), Rec(data=b"bytes that count"), Rec(data=b"x"))
    begin = log.states[1].offset - START
    for at in range(begin, begin + 128 + len(b"bytes that count")):
        for bit in range(8):
            data = bytearray(log.data)
            data[at] ^= 1 << bit
            assert log.walked(bytes(data)) == (0, 1, 1)


def _sealed(record: bytes) -> bytes:
    return record[:124] + struct.pack("<I", crc32c(record[:124]))


FIELDS = [
    (0, b"PTR2", "magic"),
    (4, b"\x02", "version"),
    (5, b"\x00", "kind"),
    (5, b"\x04", "kind"),
    (8, struct.pack("<Q", START), "offset"),
    (16, struct.pack("<Q", 3), "id"),
    (16, struct.pack("<Q", 1), "id"),
    (24, struct.pack("<Q", STORE + 1), "store"),
    (32, struct.pack("<Q", SESSION + 1), "session"),
    (44, struct.pack("<I", 0), "checksum of the bytes"),
    (120, struct.pack("<I", 0), "chain"),
]


@pytest.mark.parametrize(("at", "value", "field"), FIELDS)
def test_a_whole_record_that_does_not_belong_ends_the_walk(at: int, value: bytes, field: str) -> None:
    """Its own checksum is right each time: it is the `field` alone that tells."""
    log = Log(Rec(data=b"zero", flags=FIRST), Rec(data=b"bytes"))
    begin = log.states[1].offset - START
    record = bytearray(log.data[begin : begin + 128])
    assert log.walked() == (128, 2, 2)
    record[at : at + len(value)] = value
    data = log.data[:begin] + _sealed(bytes(record)) + log.data[begin + 128 :]
    assert log.walked(bytes(data)) == (0, 1, 1), field


def test_the_first_of_a_session_says_so() -> None:
    assert Log(Rec()).walked() == (0, 0, 0)
    log = Log(Rec(flags=FIRST), Rec(session=4), Rec(session=4))
    assert log.walked() == (0, 1, 1)
    log = Log(Rec(flags=FIRST), Rec(session=4, flags=FIRST), Rec(session=4))
    assert log.walked() == (128, 3, 3)
    log = Log(Rec(flags=FIRST), Rec(STAGE, skip=8, session=4, flags=FIRST), Rec(session=4))
    assert log.walked() == (128, 3, 2)


def test_stages_and_pads_carry_the_id_before_them() -> None:
    log = Log(Rec(flags=FIRST), Rec(STAGE, skip=80))
    begin = log.states[1].offset - START
    record = bytearray(log.data[begin : begin + 128])
    record[16] = 2
    data = log.data[:begin] + _sealed(bytes(record)) + bytes(80)
    assert log.walked(bytes(data)) == (0, 1, 1)


def test_a_stage_needs_not_be_in_the_window() -> None:
    log = Log(Rec(flags=FIRST), Rec(STAGE, skip=1 << 20), Rec())
    state = WalkState(START, STORE, 0, 0, 0, 0)
    result = walk(bytes(log.data)[:300], START, state)
    assert (result.need, result.records) == (128, 2)
    assert state == log.states[2]


def test_unknown_flags_are_reported() -> None:
    def flags(*records: Rec) -> int:
        log = Log(*records)
        return walk(log.data, START, WalkState(START, STORE, 0, 0, 0, 0)).unknown_flags

    assert flags(Rec(flags=FIRST), Rec(flags=LAST)) == 0
    assert flags(Rec(flags=FIRST | 4), Rec(flags=128), Rec()) == 132
    assert flags(Rec(flags=FIRST | 0xFF00)) == 0
    # Of those passed only.
    assert flags(Rec(flags=FIRST), Rec(flags=64, session=1)) == 0


@given(data=st.binary(max_size=600), at=st.integers(0, 500))
def test_passes_no_more_than_is_whole(data: bytes, at: int) -> None:
    """Any bytes written over a log: what is whole before them is passed, and no more."""
    records = (Rec(data=b"zero", flags=FIRST), Rec(data=b"bytes"), Rec(data=b"more" * 20))
    log = Log(*records)
    torn = bytes(log.data[:at]) + data + bytes(log.data[at + len(data) :])
    whole = 0
    for record, state in zip(records, log.states, strict=False):
        begin = state.offset - START
        end = begin + 128 + len(record.data)
        if torn[begin:end] != log.data[begin:end]:
            break
        whole += 1
    assert log.walked(torn)[1] == whole


record_lists = st.lists(
    st.builds(
        Rec,
        st.sampled_from([COMMIT, COMMIT, STAGE, PAD]),
        st.binary(max_size=300),
        st.sampled_from([SESSION, 5]),
        st.sampled_from([0, FIRST, LAST, FIRST | LAST]),
        st.integers(0, 700),
    ),
    max_size=8,
)


@given(records=record_lists)
def test_walks_to_the_first_session_that_does_not_begin(records: list[Rec]) -> None:
    log = Log(*records)
    fits = 0
    session = 0
    for record in records:
        if record.session != session and not record.flags & FIRST:
            break
        session = record.session
        fits += 1
    _need, passed, commits = log.walked()
    assert passed == fits
    assert commits == sum(record.kind == COMMIT for record in records[:fits])
