import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitfs import native
from commitfs.errors import CorruptError
from commitfs.format.checksum import crc32c
from commitfs.format.node import Root
from commitfs.format.record import (
    COMMIT,
    FIRST,
    LAST,
    LOG_START,
    PAD,
    RECORD_SIZE,
    STAGE,
    Candidate,
    Record,
    WalkState,
    pack,
    parse,
    root_word,
    seal,
    skip_id,
    walk,
)

u8, u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
STORE, SESSION = 0x1111, 0x2222

records = st.builds(
    Record,
    kind=st.integers(COMMIT, PAD),
    flags=u16,
    offset=u64,
    id=u64,
    store=u64,
    session=u64,
    length=u32,
    bytes_crc=u32,
    synced=u64,
    prev=u64,
    skip=u64,
    parent=u64,
    parent_id=u64,
    root_offset=u64,
    root_word=u32,
    root_crc=u32,
    time_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    branch=u32,
    chain=u32,
    crc=st.just(0),
)


def placed(kind: int, offset: int, id_: int, length: int) -> Record:
    return Record(kind, 0, offset, id_, STORE, 0, length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class LogWriter:
    """A log in memory, written with nothing but the format."""

    def __init__(self) -> None:
        self.image = bytearray(LOG_START)
        self.chain = 0
        self.commits = 0
        self.session = SESSION
        self.first = True
        self.records: list[Record] = []

    def append(self, kind: int, data: bytes, *, flags: int = 0, gap: int = 0) -> Record:
        self.commits += kind == COMMIT
        record = placed(kind, len(self.image), self.commits, len(data) + gap)
        if kind == COMMIT:
            record = record._replace(bytes_crc=crc32c(data))
        flags |= FIRST if self.first else 0
        record, raw = seal(
            record, session=self.session, flags=flags, synced=0, chain=self.chain, checksum=crc32c
        )
        self.first = False
        self.chain = record.crc
        self.image += raw + data + bytes(record.end - record.bytes_offset - len(data))
        self.records.append(record)
        return record

    def restart(self) -> None:
        self.session += 1
        self.first = True


def some_log(seed: int = 1) -> LogWriter:
    random_ = random.Random(seed)
    log = LogWriter()
    for _ in range(40):
        if random_.random() < 0.1:
            log.restart()
        kind = random_.choice((COMMIT, COMMIT, COMMIT, STAGE, PAD))
        data = random_.randbytes(random_.randrange(200))
        log.append(
            kind, data, flags=random_.choice((0, LAST, 0x100)), gap=random_.choice((0, 64)) * (kind != COMMIT)
        )
    return log


def walked(image: bytes) -> list[Record]:
    state = WalkState.at_start(STORE)
    result = walk(image[LOG_START:], LOG_START, state, crc32c)
    return list(result.records)


class TestChecksum:
    def test_the_check_value(self) -> None:
        assert crc32c(b"123456789") == 0xE3069283

    @given(st.binary(), st.binary())
    def test_goes_on_from_a_seed(self, a: bytes, b: bytes) -> None:
        assert crc32c(b, crc32c(a)) == crc32c(a + b) == native.crc32c(a + b)


class TestRecord:
    @given(records)
    def test_packs_and_parses(self, record: Record) -> None:
        data, crc = pack(record, crc32c)
        assert len(data) == RECORD_SIZE
        assert parse(data, crc32c) == Candidate(*record._replace(crc=crc))

    @given(records)
    def test_its_own_checksum_is_not_a_constant_to_chain_with(self, record: Record) -> None:
        # The checksum over a whole record would be: that of a message that ends in its own.
        data, crc = pack(record, crc32c)
        other, other_crc = pack(record._replace(offset=record.offset ^ 8), crc32c)
        assert crc32c(data) == crc32c(other)
        assert crc != other_crc

    def test_no_bit_can_be_turned_over(self) -> None:
        data, _ = pack(placed(COMMIT, LOG_START, 1, 100), crc32c)
        for bit in range(RECORD_SIZE * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            assert parse(flipped, native.crc32c) is None, bit

    def test_is_not_read_where_it_does_not_fit(self) -> None:
        data, _ = pack(placed(COMMIT, LOG_START, 1, 100), crc32c)
        assert parse(data[:-1], crc32c) is None
        assert parse(b"12345678" + data, crc32c, 8) is not None
        assert parse(b"12345678" + data, crc32c, 9) is None

    def test_an_earlier_head_is_no_record(self) -> None:
        data, _ = pack(placed(COMMIT, LOG_START, 1, 100), crc32c, earlier=True)
        assert parse(data, crc32c) is None
        assert parse(data, crc32c, earlier=True) is not None

    def test_a_pointer_confirms_what_it_leads_to(self) -> None:
        data, _ = pack(placed(COMMIT, LOG_START, 7, 100), crc32c)
        found = parse(data, crc32c)
        assert found is not None
        assert found.confirm(offset=LOG_START, store=STORE, id=7).id == 7
        for offset, store, id_ in (
            (LOG_START + 8, STORE, 7),
            (LOG_START, STORE + 1, 7),
            (LOG_START, STORE, 8),
        ):
            with pytest.raises(CorruptError):
                found.confirm(offset=offset, store=store, id=id_)

    @given(st.integers(0, (1 << 24) - 1), st.integers(0, 255), u32, u64)
    def test_holds_a_root(self, length: int, level: int, crc: int, offset: int) -> None:
        root = Root(offset, length, level, crc)
        record = placed(COMMIT, LOG_START, 1, 0)._replace(
            root_offset=offset, root_word=root_word(root), root_crc=crc
        )
        assert record.root == root

    def test_refuses_a_root_it_cannot_hold(self) -> None:
        with pytest.raises(ValueError, match="no such root"):
            root_word(Root(LOG_START, 1 << 24, 0, 0))

    def test_the_next_one_is_aligned(self) -> None:
        assert [placed(COMMIT, LOG_START, 1, n).end - LOG_START for n in (0, 1, 8, 9)] == [128, 136, 136, 144]


def test_fields_lie_where_the_document_draws_them() -> None:
    record = Record(
        2,
        0x0103,
        0x08,
        0x10,
        0x18,
        0x20,
        0x28,
        0x2C,
        0x30,
        0x38,
        0x40,
        0x48,
        0x50,
        0x58,
        0x60,
        0x64,
        -2,
        0x70,
        0x78,
        0,
    )
    data, crc = pack(record, crc32c)
    assert data[:8] == b"PTR3" + bytes([1, 2, 3, 1])
    for at, size in (
        *((at, 8) for at in (8, 16, 24, 32, 48, 56, 64, 72, 80, 88)),
        *((at, 4) for at in (40, 44, 96, 100, 112, 120)),
    ):
        assert int.from_bytes(data[at : at + size], "little") == at, f"field at {at}"
    assert int.from_bytes(data[104:112], "little", signed=True) == -2
    assert data[116:120] == bytes(4)
    assert int.from_bytes(data[124:], "little") == crc == crc32c(data[:124])


class TestSkip:
    def test_is_the_recurrence_of_the_format(self) -> None:
        skip = {0: 0, 1: 0}
        for n in range(2, 5000):
            p = n - 1
            s = skip[p]
            skip[n] = skip[s] if s > 0 and p - s == s - skip[s] else p
            assert skip_id(n) == skip[n]

    @given(st.integers(1, 10**6), st.integers(1, 10**6))
    def test_reaches_any_earlier_id_in_few_steps(self, a: int, b: int) -> None:
        low, at = sorted((a, b))
        steps = 0
        while at > low:
            far = skip_id(at)
            at = far if far >= low else at - 1
            steps += 1
        assert at == low
        assert steps <= 50


class TestWalk:
    def test_passes_all_kinds(self) -> None:
        log = some_log()
        assert walked(bytes(log.image)) == log.records

    def test_asks_for_what_it_lacks(self) -> None:
        log = LogWriter()
        first = log.append(COMMIT, b"a" * 100)
        log.append(COMMIT, b"b" * 1000)
        for size in range(len(log.image) - LOG_START):
            state = WalkState.at_start(STORE)
            result = walk(log.image[LOG_START : LOG_START + size], LOG_START, state, native.crc32c)
            if size < RECORD_SIZE:
                assert result == (RECORD_SIZE, ())
            elif size < RECORD_SIZE + 100:
                assert result == (RECORD_SIZE + 100, ())
            elif size < first.end - LOG_START + RECORD_SIZE:
                assert result == (RECORD_SIZE, (first,))
            else:
                assert result == (RECORD_SIZE + 1000, (first,))

    @pytest.mark.parametrize("seed", range(5))
    def test_no_bit_of_a_record_or_of_bytes_can_be_turned_over(self, seed: int) -> None:
        log = LogWriter()
        for n in range(4):
            log.append(COMMIT, random.Random(seed + n).randbytes(24))
        for bit in range(LOG_START * 8, len(log.image) * 8):
            flipped = bytearray(log.image)
            flipped[bit // 8] ^= 1 << bit % 8
            within = next(n for n, record in enumerate(log.records) if bit // 8 < record.end)
            state = WalkState.at_start(STORE)
            result = walk(flipped[LOG_START:], LOG_START, state, native.crc32c)
            assert list(result.records) == log.records[:within]

    def test_wants_the_session_of_the_record_before_or_the_first_of_another(self) -> None:
        log = LogWriter()
        log.append(COMMIT, b"one")
        log.session += 1
        log.append(COMMIT, b"two")
        assert len(walked(bytes(log.image))) == 1
        log = LogWriter()
        log.append(COMMIT, b"one")
        log.restart()
        log.append(COMMIT, b"two")
        assert len(walked(bytes(log.image))) == 2

    def test_wants_the_first_record_to_be_the_first_of_a_session(self) -> None:
        log = LogWriter()
        log.first = False
        log.append(COMMIT, b"one")
        assert walked(bytes(log.image)) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"offset": LOG_START + 8},
            {"store": STORE + 1},
            {"id": 2},
            {"id": 0},
            {"chain": 1},
            {"kind": 4},
            {"kind": 0},
        ],
    )
    def test_wants_place_store_id_chain_and_a_known_kind(self, change: dict[str, int]) -> None:
        record = placed(COMMIT, LOG_START, 1, 0)._replace(flags=FIRST, session=SESSION, bytes_crc=crc32c(b""))
        good, _ = pack(record, crc32c)
        bad, _ = pack(record._replace(**change), crc32c)
        assert len(walked(bytes(LOG_START) + good)) == 1
        assert walked(bytes(LOG_START) + bad) == []

    @pytest.mark.parametrize("seed", range(30))
    def test_is_what_the_native_walk_does(self, seed: int) -> None:
        random_ = random.Random(seed)
        log = some_log(seed)
        image = bytes(log.image) + bytes(200)
        if seed % 3:
            at = random_.randrange(LOG_START, len(image))
            image = image[:at] + bytes([image[at] ^ 1 << random_.randrange(8)]) + image[at + 1 :]
        state = WalkState.at_start(STORE)
        other = replace(state)
        base, size = LOG_START, 128
        for _ in range(1000):
            window = image[base : base + size]
            ours = walk(window, base, state, crc32c)
            theirs = native.walk(window, base, other)
            assert ours.need == theirs.need
            assert state == other
            assert len(ours.records) == theirs.records
            assert sum(record.kind == COMMIT for record in ours.records) == theirs.commits
            if not ours.need or len(window) < size:
                break
            base, size = state.offset, max(ours.need, random_.randrange(128, 1000))
        else:
            pytest.fail("the walk does not end")

    def test_unknown_flags_are_seen(self) -> None:
        log = LogWriter()
        log.append(COMMIT, b"one", flags=0x0104)
        result = native.walk(bytes(log.image[LOG_START:]), LOG_START, WalkState.at_start(STORE))
        assert result.unknown_flags == 4
