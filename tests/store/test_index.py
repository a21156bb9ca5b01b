"""Records by id and by time, O(log n)."""

import bisect
import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitfs.errors import CorruptError, NotFoundError
from commitfs.format.record import RECORD_SIZE, Record, pack, parse, skip_id
from commitfs.format.slot import SLOT_OFFSETS, SLOT_SIZE, Slot, pack_slot, parse_slot
from commitfs.native import crc32c
from commitfs.store.index import Index, Skips
from commitfs.store.store import Store
from tests.support import stores
from tests.support.memory_file import MemoryDisk
from tests.support.stores import flip, open_store, queue

COUNT = 10_000


@pytest.fixture(scope="module")
def disk() -> MemoryDisk:
    made = stores.disk()
    store = open_store(made, writable=True)
    random_ = random.Random(1)
    time_ns = 0
    for _ in range(COUNT):
        time_ns += random_.choice((0, 1, 10, 1000))
        queue(store, b"", time_ns=time_ns)
    store.close()
    return made


@pytest.fixture
def store(disk: MemoryDisk) -> Store:
    return open_store(disk)


class Counted:
    """An index that keeps nothing, and counts its reads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reads = 0

    def read(self, offset: int, length: int) -> bytes:
        assert length == RECORD_SIZE
        self.reads += 1
        return self.store.read(offset, length)

    def index(self) -> Index:
        return Index(self.read, self.store.store_number)


def head_of(store: Store) -> Record:
    assert store.head is not None
    return store.head


def sampled() -> Iterator[int]:
    yield from (1, 2, 3, COUNT // 2, COUNT - 2, COUNT - 1, COUNT)
    yield from random.Random(2).sample(range(1, COUNT), 300)


def test_every_id_is_found_in_few_reads(store: Store) -> None:
    most = total = 0
    for commit_id in sampled():
        counted = Counted(store)
        assert counted.index().by_id(head_of(store), commit_id).id == commit_id
        most = max(most, counted.reads)
        total += counted.reads
    assert most <= 3 * math.log2(COUNT)
    assert total / 307 <= 2 * math.log2(COUNT)


def test_every_time_is_found_in_few_reads(store: Store) -> None:
    times = [record.time_ns for record in store.records()][::-1]
    most = 0
    for commit_id in sampled():
        for time_ns in (times[commit_id - 1], times[commit_id - 1] + 1):
            counted = Counted(store)
            found = counted.index().by_time(head_of(store), time_ns)
            assert found.id == bisect.bisect_right(times, time_ns)
            most = max(most, counted.reads)
    assert most <= 6 * math.log2(COUNT)


def test_what_is_not_there(store: Store) -> None:
    for commit_id in (-1, 0, COUNT + 1):
        with pytest.raises(NotFoundError):
            store.record(commit_id)
    first = store.record(1)
    with pytest.raises(NotFoundError):
        store.record_at(first.time_ns - 1)
    assert store.record_at(1 << 62) == store.head


def test_records_go_back_from_any_commit(store: Store) -> None:
    assert [record.id for record in store.records(5)] == [5, 4, 3, 2, 1]
    assert [record.id for record in store.records()] == list(range(COUNT, 0, -1))


def test_a_writer_goes_on_with_the_skip_pointers(disk: MemoryDisk) -> None:
    copy = MemoryDisk(disk.cache)
    for _ in range(5):
        store = open_store(copy, writable=True)
        for _ in range(7):
            queue(store, b"", time_ns=1 << 60)
        store.close()
    counted = Counted(open_store(copy))
    index = counted.index()
    head = head_of(counted.store)
    assert head.id == COUNT + 35
    for record in index.back_from(head):
        if record.id < COUNT - 100:
            break
        skipped = index.skipped(record)
        assert skipped is None or skipped.id < record.id
    counted.reads = 0
    assert Index(counted.read, counted.store.store_number).by_id(head, 1).id == 1
    assert counted.reads <= 3 * math.log2(COUNT)


def test_damage_is_told_and_goes_no_further(disk: MemoryDisk) -> None:
    store = open_store(disk)
    hurt = store.record(COUNT // 2)
    copy = MemoryDisk(disk.cache)
    flip(copy, hurt.offset + 30)
    store = open_store(copy)
    with pytest.raises(CorruptError, match=f"commit {hurt.id}"):
        store.record(hurt.id)
    assert store.record(hurt.id + 1).id == hurt.id + 1
    assert store.record(1).id == 1
    assert store.record(hurt.id - 1).id == hurt.id - 1
    writer = open_store(copy, writable=True)
    assert writer.writable
    queue(writer)
    writer.flush()
    assert writer.durable_id == COUNT + 1


@pytest.mark.parametrize("places", [[4095], [4095, 4096, 4097], [8191, 4095, 511, 510]])
def test_no_damage_hides_what_is_older(disk: MemoryDisk, places: list[int]) -> None:
    # All pointers from 4096 to 8190 down lead to 4095: without it only the log itself shows what lies below.
    store = open_store(disk)
    copy = MemoryDisk(disk.cache)
    for commit_id in places:
        flip(copy, store.record(commit_id).offset + 100)
    said: list[str] = []
    hurt = open_store(copy, report=said.append)
    assert [record.id for record in hurt.records()] == [n for n in range(COUNT, 0, -1) if n not in places]
    assert len(said) == sum(n + 1 not in places for n in places), "of neighbours the upper one"
    assert all("commitfs check" in line for line in said)
    for commit_id in sampled():
        if commit_id not in places:
            assert hurt.record(commit_id) == store.record(commit_id)
            found = hurt.record_at(store.record(commit_id).time_ns)
            assert found.time_ns <= store.record(commit_id).time_ns
            assert found.id >= commit_id - len(places)
    for commit_id in places:
        with pytest.raises(CorruptError):
            hurt.record(commit_id)


@pytest.mark.parametrize("size", [0, 100, 262_000, 262_144, 700_000])
def test_what_lies_below_damage_is_found_over_any_distance(size: int) -> None:
    made = stores.disk()
    writer = open_store(made, writable=True)
    for n in range(8):
        queue(writer, bytes([n]) * size)
    writer.close()
    flip(made, writer.record(4).offset + 5)
    flip(made, writer.record(7).offset + 5)
    store = open_store(made)
    assert [record.id for record in store.records()] == [8, 6, 5, 3, 2, 1]
    assert [store.record(n).id for n in (6, 5, 3, 2, 1)] == [6, 5, 3, 2, 1]


def test_damage_of_the_oldest_ends_the_history(disk: MemoryDisk) -> None:
    copy = MemoryDisk(disk.cache)
    flip(copy, 8192)
    store = open_store(copy)
    assert [record.id for record in store.records(3)] == [3, 2]
    with pytest.raises(CorruptError):
        store.record(1)


def test_a_writer_knows_the_next_pointer_without_reading(disk: MemoryDisk) -> None:
    counted = Counted(open_store(disk))
    head = counted.store.record(7777)
    skips = counted.index().skips_from(head)
    assert counted.reads <= 2 * math.log2(COUNT)
    counted.reads = 0
    for record in reversed(list(counted.store.records(9000))[: 9000 - 7777]):
        assert skips.next() == skips.next() == record.skip
        skips.placed(record.id, record.offset)
    assert counted.reads == 0


def test_pointers_of_a_log_that_begins_late_are_of_its_own_commits_only() -> None:
    # As behind a PURETRE2 head: ids go on, records below the first are not in this log.
    for first in range(1, 200):
        skips = Skips([(first, first * 1000), *((n, 0) for n in skip_chain(first)[1:])])
        for commit_id in range(first + 1, 400):
            target = skip_id(commit_id)
            assert skips.next() == (target * 1000 if target >= first else 0)
            skips.placed(commit_id, commit_id * 1000)


def skip_chain(commit_id: int) -> list[int]:
    chain = []
    while commit_id:
        chain.append(commit_id)
        commit_id = skip_id(commit_id)
    return chain


@pytest.mark.parametrize("far", [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("field", ["prev", "skip"])
def test_pointers_that_do_not_lead_back_are_damage(field: str, far: int) -> None:
    made = stores.filled(20)[0]
    store = open_store(made)
    head = store.record(20)
    if field == "prev":
        forged = head._replace(prev=far)
    else:
        forged = head._replace(skip=far)
    data, _ = pack(forged, crc32c)
    made.put(data, head.offset)
    for at in SLOT_OFFSETS:
        slot = parse_slot(made.cache[at : at + SLOT_SIZE], crc32c)
        if isinstance(slot, Slot) and slot.head is not None and slot.head.id == 20:
            found = parse(data, crc32c)
            assert found is not None
            made.put(pack_slot(dataclasses.replace(slot, head=Record._make(found)), crc32c), at)
    store = open_store(made)
    assert head_of(store).prev == far or head_of(store).skip == far
    assert [record.id for record in store.records()] == list(range(20, 0, -1))
    assert [store.record(n).id for n in range(1, 21)] == list(range(1, 21))
    assert store.record_at(3000).id == 3


def test_reads_nowhere_near_the_store_are_damage_and_cost_nothing(
    disk: MemoryDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.db").write_bytes(disk.cache)
    with_file = Store.open(tmp_path / "s.db")
    asked: list[int] = []
    pread = with_file.file.pread

    def counted(length: int, offset: int) -> bytes:
        asked.append(length)
        return pread(length, offset)

    monkeypatch.setattr(with_file.file, "pread", counted)
    for offset, length in [(1 << 63, 1), ((1 << 63) - 1, 1), ((1 << 64) - 1, 128), (8192, (1 << 32) - 1)]:
        with pytest.raises(CorruptError):
            with_file.read(offset, length)
    assert asked == []
    with_file.close()
