"""The earlier format: read, continued, and still written."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from commitfs.errors import CorruptError, FormatError, NotFoundError
from commitfs.format.node import NO_ROOT, Root
from commitfs.format.record import FIRST, RECORD_SIZE
from commitfs.format.slot import SLOT_OFFSETS, SLOT_SIZE, Slot, parse_slot
from commitfs.native import crc32c
from commitfs.store.make import make_file, new_image
from commitfs.store.puretre2 import EarlierWriter
from commitfs.store.store import Store
from commitfs.types import Buffer
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import commit, flip, ids, open_store, opener

ROOT = Root(9000, 300, 1, 77)


def earlier(count: int) -> MemoryDisk:
    disk = MemoryDisk(new_image(8, earlier=True))
    writer = EarlierWriter("memory", opener=opener(disk))
    for n in range(1, count + 1):
        assert writer.commit([b"commit ", b"%d" % n], root=ROOT, time_ns=n * 10) == n
    writer.close()
    return disk


def slots(disk: MemoryDisk) -> list[object]:
    return [parse_slot(disk.cache[at : at + SLOT_SIZE], crc32c) for at in SLOT_OFFSETS]


def magics(disk: MemoryDisk) -> set[bytes]:
    return {bytes(disk.cache[at : at + 8]) for at in SLOT_OFFSETS}


def test_is_read() -> None:
    disk = earlier(20)
    before = bytes(disk.cache)
    store = open_store(disk)
    assert store.head is not None
    assert (store.head.id, store.head.time_ns, store.head.root) == (20, 200, ROOT)
    assert store.bytes_of(store.head) == b"commit 20"
    assert (store.oldest_id, store.next_id, store.durable_id) == (20, 21, 20)
    assert ids(store) == [20]
    assert store.record(20) == store.head == store.record_at(200)
    for missing in (1, 19, 21):
        with pytest.raises(NotFoundError):
            store.record(missing)
    with pytest.raises(NotFoundError):
        store.record_at(199)
    assert disk.cache == before


def test_a_reader_follows_its_writer() -> None:
    disk = earlier(3)
    reader = open_store(disk)
    writer = EarlierWriter("memory", opener=opener(disk))
    assert not reader.refresh()
    writer.commit([b"more"])
    assert reader.refresh()
    assert reader.durable_id == 4
    assert reader.head is not None
    assert reader.bytes_of(reader.head) == b"more"


def test_is_continued_with_records() -> None:
    disk = earlier(20)
    reader = open_store(disk)
    old = reader.head
    assert old is not None
    store = open_store(disk, writable=True)
    first = store.head
    assert first is not None
    assert magics(disk) == {b"PURETRE3"}
    assert (first.id, first.prev, first.skip, first.parent, first.parent_id) == (21, 0, 0, 0, 20)
    assert first.flags & FIRST
    assert (first.root, first.time_ns, first.length) == (ROOT, old.time_ns, 0)
    assert first.offset == old.end
    made = [commit(store, b"%d" % n, time_ns=300) for n in range(100)]
    assert store.oldest_id == 21
    store.close()
    assert reader.refresh()
    for again in (reader, open_store(disk), open_store(disk, writable=True)):
        assert again.head == made[-1]
        assert ids(again) == list(range(121, 20, -1))
        assert again.oldest_id == 21
        assert [again.record(n).id for n in range(21, 122)] == list(range(21, 122))
        assert again.record_at(200).id == 21
        for missing in (1, 20):
            with pytest.raises(NotFoundError):
                again.record(missing)
    assert disk.cache[8192 : old.end] == earlier(20).cache[8192 : old.end]


def test_without_a_commit() -> None:
    disk = earlier(0)
    assert open_store(disk).head is None
    store = open_store(disk, writable=True)
    assert magics(disk) == {b"PURETRE3"}
    assert commit(store).id == 1
    store.close()
    assert ids(open_store(disk)) == [1]


def test_an_earlier_program_never_finds_a_slot_behind_a_record() -> None:
    # At every write: the slots are of PURETRE3 before the first record is written, one sync each.
    disk = earlier(7)
    order: list[str] = []

    class Noting(MemoryFile):
        def write_aside(self, data: Buffer, offset: int) -> None:
            self.disk.put(data, offset)
            if offset < 8192:
                order.append(f"slot {offset}")
                found = [slot for slot in slots(self.disk) if isinstance(slot, Slot)]
                assert [slot.head and slot.head.id for slot in found] in ([7, 7], [7, 6], [6, 7])

        def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
            super().write_durable(buffers, offset)
            order.append("record")

    Store.open("memory", writable=True, opener=lambda _path, _writable: Noting(disk))
    assert sorted(order[:2]) == ["slot 0", "slot 4096"]
    assert order[2:] == ["record"]
    newest_before = max(
        SLOT_OFFSETS, key=lambda at: int.from_bytes(earlier(7).cache[at + 24 : at + 32], "little")
    )
    assert order[0] != f"slot {newest_before}", "the older goes first"


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_a_crash_while_it_is_taken_over(writes: int) -> None:
    disk = earlier(7)

    class Crashing(MemoryFile):
        left = writes

        def _spend(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "power")

        def write_aside(self, data: Buffer, offset: int) -> None:
            if offset < 8192:
                self._spend()
            self.disk.put(data, offset)

        def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
            self._spend()
            super().write_durable(buffers, offset)

    try:
        Store.open("memory", writable=True, opener=lambda _path, _writable: Crashing(disk))
    except OSError:
        assert writes < 3
    reader = open_store(disk)
    assert reader.head is not None
    assert (reader.durable_id, reader.head.root) == (7 + (writes == 3), ROOT)
    if writes < 2:
        # An earlier program may still go on, from the same head.
        other = EarlierWriter("memory", opener=opener(MemoryDisk(disk.cache)))
        assert other.commit([b"x"]) == 8
    else:
        with pytest.raises(FormatError):
            EarlierWriter("memory", opener=opener(disk))
    store = open_store(disk, writable=True)
    assert store.durable_id == 8
    assert commit(store).id == 9
    assert magics(disk) == {b"PURETRE3"}
    assert store.writable


def test_a_commit_whose_bytes_are_torn_is_not_there() -> None:
    disk = earlier(6)
    head = open_store(disk).head
    assert head is not None
    flip(disk, head.bytes_offset)
    assert open_store(disk).durable_id == 5
    again = EarlierWriter("memory", opener=opener(MemoryDisk(disk.cache)))
    assert again.commit([b"six"]) == 6
    store = open_store(disk, writable=True)
    assert store.durable_id == 6
    assert store.record(6).parent_id == 5


def test_lost_slots_cannot_be_made_good() -> None:
    disk = earlier(6)
    for at in SLOT_OFFSETS:
        flip(disk, at + 200)
    with pytest.raises(CorruptError):
        open_store(disk)


def test_is_written_with_one_sync_of_two_ranges() -> None:
    disk = MemoryDisk(new_image(8, earlier=True))
    calls: list[tuple[str, int]] = []

    class Noting(MemoryFile):
        def write(self, data: Buffer, offset: int) -> None:
            calls.append(("write", offset))
            super().write(data, offset)

        def sync(self) -> None:
            calls.append(("sync", 0))
            super().sync()

    writer = EarlierWriter("memory", opener=lambda _path, _writable: Noting(disk))
    for _ in range(3):
        writer.commit([b"x" * 100])
    assert calls == [
        ("write", 8192), ("write", 0), ("sync", 0),
        ("write", 8296), ("write", 4096), ("sync", 0),
        ("write", 8400), ("write", 0), ("sync", 0),
    ]  # fmt: skip
    assert RECORD_SIZE == 128


def test_on_a_real_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    make_file(str(path), new_image(8, earlier=True))
    writer = EarlierWriter(str(path))
    for n in range(30):
        writer.commit([bytes([n]) * 100_000])
    writer.close()
    Store.create(tmp_path / "other.db")
    with pytest.raises(FormatError):
        EarlierWriter(str(tmp_path / "other.db"))
    store = Store.open(path, writable=True)
    assert store.durable_id == 31
    commit(store)
    store.close()
    assert ids(Store.open(path)) == [32, 31]
    assert NO_ROOT.offset == 0
