"""The check of a store: sound ones pass, damage is found where it is and hides nothing else (P7)."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commitfs.format.record import LOG_START, RECORD_SIZE, Record, pack
from commitfs.format.slot import SLOT_OFFSETS, SLOT_SIZE, Slot, parse_slot
from commitfs.native import crc32c
from commitfs.store.check import Finding, Seen, Severity, check_store
from commitfs.store.file import WriteFailed
from commitfs.store.make import make_file, new_image
from commitfs.store.puretre2 import EarlierWriter
from commitfs.store.store import Store
from tests.support import stores
from tests.support.crash_file import memory_opener
from tests.support.crash_load import Load, short_tail
from tests.support.memory_file import MemoryDisk, MemoryFile

COMMITS = 40


class Damaged:
    """A store in memory with `COMMITS` commits, to be damaged and checked."""

    def __init__(self, path: Path) -> None:
        Store.create(str(path))
        self.path = path
        with short_tail():
            load = Load.on(path, seed=51)
            load.commits(COMMITS)
            load.store.close()
        self.image = bytearray(load.disk.cache)
        self.records: dict[int, Record] = {}
        store = self.open()
        for record in store.records():
            self.records[record.id] = record
        self.end = int(store.published_end)
        store.close()

    def open(self) -> Store:
        return Store.open(str(self.path), opener=memory_opener(MemoryDisk(self.image)))

    def flip(self, offset: int) -> None:
        self.image[offset] ^= 0x10

    def check(self) -> list[Finding]:
        store = self.open()
        try:
            return list(check_store(store))
        finally:
            store.close()


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path / "store")


def test_a_sound_store_has_no_findings(damaged: Damaged) -> None:
    assert damaged.check() == []


def test_an_empty_store_has_none(tmp_path: Path) -> None:
    Store.create(str(tmp_path / "store"))
    store = Store.open(str(tmp_path / "store"))
    assert list(check_store(store)) == []
    store.close()


@pytest.mark.parametrize("commit", [1, 2, 20, COMMITS - 1])
def test_a_damaged_record_is_found_and_what_follows_is_checked(damaged: Damaged, commit: int) -> None:
    damaged.flip(damaged.records[commit].offset + 50)
    later = damaged.records[COMMITS]
    damaged.flip(later.bytes_offset)
    found = damaged.check()
    record = damaged.records[commit]
    assert any(f.offset == record.offset and f.severity is Severity.DAMAGE for f in found)
    if commit > 1:
        assert any(f"commit {commit} is lost" in f.message for f in found)
    assert any(f.commit == COMMITS and "do not fit their checksum" in f.message for f in found)


def test_several_lost_records_are_named_together(damaged: Damaged) -> None:
    for commit in (5, 6, 7):
        damaged.flip(damaged.records[commit].offset)
    (found,) = (f for f in damaged.check() if "lost" in f.message)
    assert "commits 5 to 7 are lost" in found.message
    assert (found.commit, found.offset) == (5, damaged.records[5].offset)


def test_damaged_bytes_of_a_commit_are_found(damaged: Damaged) -> None:
    for commit in (3, 30):
        damaged.flip(damaged.records[commit].bytes_offset + 3)
    found = [f for f in damaged.check() if "do not fit" in f.message]
    assert [f.commit for f in found] == [3, 30]
    assert [f.offset for f in found] == [damaged.records[n].bytes_offset for n in (3, 30)]


def test_a_damaged_node_is_found_once_however_many_commits_share_it(damaged: Damaged) -> None:
    root = damaged.records[COMMITS].root
    damaged.flip(root.offset + root.length - 1)
    nodes = [f for f in damaged.check() if "tree node" in f.message]
    assert [f.offset for f in nodes] == [root.offset]


def test_each_node_is_read_once(damaged: Damaged, monkeypatch: pytest.MonkeyPatch) -> None:
    store = damaged.open()
    reads: list[int] = []
    read = Store.read

    def counting(self: Store, offset: int, length: int) -> bytes:
        reads.append(offset)
        return read(self, offset, length)

    monkeypatch.setattr(Store, "read", counting)
    assert list(check_store(store)) == []
    starts = {record.offset for record in damaged.records.values()}
    bytes_starts = {record.bytes_offset for record in damaged.records.values()}
    nodes = [offset for offset in reads if offset >= LOG_START and offset not in starts | bytes_starts]
    assert len(nodes) == len(set(nodes))
    assert len(nodes) > COMMITS
    store.close()


def test_one_torn_slot_is_no_damage(damaged: Damaged) -> None:
    damaged.flip(SLOT_OFFSETS[0] + 100)
    (found,) = damaged.check()
    assert (found.severity, found.offset) == (Severity.WARNING, SLOT_OFFSETS[0])


def test_two_lost_slots_are(damaged: Damaged) -> None:
    for offset in SLOT_OFFSETS:
        damaged.flip(offset + 100)
    assert [f.severity for f in damaged.check()].count(Severity.DAMAGE) == 1


def test_a_torn_end_is_no_damage(damaged: Damaged) -> None:
    """As a crash leaves it: the last commit's bytes are not whole, and no slot names it."""
    with short_tail():
        load = Load.on(damaged.path, seed=52)
        load.commits(20)
        end = int(load.store.published_end)
        last = load.store.head
    assert last is not None
    damaged.image = bytearray(load.disk.cache)
    damaged.image[end - 16 : end] = bytes(16)
    store = damaged.open()
    assert store.head is not None
    assert store.head.id == last.id - 1
    assert list(check_store(store)) == []


@pytest.mark.parametrize("where", ["record", "bytes"])
def test_damage_behind_the_slots_is_told_from_a_torn_end(damaged: Damaged, where: str) -> None:
    """The walk ends at damaged commit 18; a later record shows that it had been durable."""
    with short_tail():
        load = Load.on(damaged.path, seed=53)
        for _ in range(20):
            load.flush(load.place((300,)))
    damaged.image = bytearray(load.disk.cache)
    record = load.store.record(18)
    damaged.flip(record.offset + 60 if where == "record" else record.bytes_offset + 5)
    store = damaged.open()
    found = list(check_store(store))
    assert any(f.severity is Severity.DAMAGE and f.commit == 18 for f in found)


def test_a_record_that_does_not_continue_the_one_before_is_found(damaged: Damaged) -> None:
    """Commit 10 is replaced by another whole one of the same place and size."""
    record = damaged.records[10]
    other = record._replace(time_ns=record.time_ns + 1)
    data, _ = pack(other, crc32c)
    damaged.image[record.offset : record.offset + RECORD_SIZE] = data
    found = damaged.check()
    assert any("does not continue" in f.message and f.commit == 11 for f in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r._replace(prev=8192), "points to a previous commit at 8192"),
        (lambda r: r._replace(skip=8192), "skips to a commit at 8192"),
        (lambda r: r._replace(parent=8192), "as its parent"),
        (lambda r: r._replace(time_ns=5), "older by its time"),
        (lambda r: r._replace(synced=1 << 40), "were durable"),
    ],
)
def test_a_record_that_says_what_cannot_be_is_found(
    damaged: Damaged, change: Callable[[Record], Record], message: str
) -> None:
    record = change(damaged.records[20])
    damaged.image[record.offset : record.offset + RECORD_SIZE] = pack(record, crc32c)[0]
    assert any(message in f.message and f.commit == 20 for f in damaged.check())


def test_a_slot_that_names_what_is_not_there_is_found(damaged: Damaged) -> None:
    head = damaged.records[COMMITS]
    damaged.image[head.offset : damaged.end] = bytes(damaged.end - head.offset)
    assert any("names a commit that is not there" in f.message for f in damaged.check())


@pytest.mark.parametrize("continued", [False, True])
def test_stores_of_the_earlier_format(tmp_path: Path, continued: bool) -> None:
    path = tmp_path / "store"
    make_file(str(path), new_image(8, earlier=True))
    writer = EarlierWriter(str(path))
    for number in range(3):
        writer.commit([b"contents %d" % number], time_ns=number)
    head = writer.head
    writer.close()
    assert head is not None
    if continued:
        store = Store.open(str(path), writable=True)
        for _ in range(40):
            txn = store.begin(10)
            txn.add(b"contents")
            txn.finish(root=head.root, time_ns=10)
        store.close()
    store = Store.open(str(path))
    assert list(check_store(store)) == []
    store.close()
    image = bytearray(path.read_bytes())
    image[head.bytes_offset] ^= 1
    path.write_bytes(image)
    if not continued:
        store = Store.open(str(path))
        assert store.head is not None
        assert store.head.id == head.id - 1
        (found,) = check_store(store)
        assert (found.severity, found.commit) == (Severity.WARNING, head.id)
        store.close()


def test_progress_is_told(damaged: Damaged) -> None:
    told: list[tuple[int, int]] = []
    store = damaged.open()
    list(check_store(store, progress=lambda done, total: told.append((done, total))))
    assert told == sorted(told)
    assert told[-1] == (damaged.end, damaged.end)
    assert len(told) > COMMITS


def test_seen_tells_pairs_apart() -> None:
    seen = Seen()
    assert seen.add(100, 1)
    assert seen.add(100, 2)
    assert seen.add(100 + (1 << 40), 1)
    assert not seen.add(100, 1)
    assert not seen.add(100 + (1 << 40), 1)


def test_damage_is_never_taken_for_a_torn_end(damaged: Damaged) -> None:
    """Of commits no slot names yet, all but the last group can be told from a torn end: a writer
    opens such a store for reading only, and cuts nothing off."""
    with short_tail():
        load = Load.on(damaged.path, seed=54)
        for number in range(20):
            load.flush(*[load.place((200,)) for _ in range(1 + number % 2)])
        head = load.store.head
        assert head is not None
        named = max(slot.head.id for slot in slots_of(load.disk) if slot.head is not None)
        group = [record for record in load.store.records() if record.synced == head.synced]
        assert named + 3 < head.id
        tried = 0
        for commit in range(named + 1, head.id + 1 - len(group)):
            record = load.store.record(commit)
            for place in range(record.offset, record.bytes_offset + record.length, 37):
                image = bytearray(load.disk.cache)
                image[place] ^= 1 << place % 8
                disk = MemoryDisk(image)
                store = Store.open(str(damaged.path), writable=True, opener=memory_opener(disk))
                assert not store.writable, f"commit {commit}, the byte at {place}"
                store.close()
                assert disk.cache == image
                tried += 1
        assert tried > 100


def slots_of(disk: MemoryDisk) -> list[Slot]:
    slots = [parse_slot(disk.cache[at : at + SLOT_SIZE], crc32c) for at in SLOT_OFFSETS]
    return [slot for slot in slots if isinstance(slot, Slot)]


class BadSectors(MemoryFile):
    """A device that cannot read some of its 512-byte sectors, given by any offset in them."""

    def __init__(self, image: bytearray, bad: list[int]) -> None:
        super().__init__(MemoryDisk(image), writable=False)
        self.bad = {place // 512 for place in bad}

    def pread(self, length: int, offset: int) -> bytes:
        if self.bad.intersection(range(offset // 512, (offset + length - 1) // 512 + 1)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(length, offset)


def findings_with(damaged: Damaged, bad: list[int]) -> list[Finding]:
    file = BadSectors(damaged.image, bad)
    store = Store.open(str(damaged.path), opener=lambda path, writable: file)
    try:
        return list(check_store(store))
    finally:
        store.close()


def test_sectors_the_device_cannot_read_are_found_and_hide_nothing_else(damaged: Damaged) -> None:
    in_record, in_bytes = damaged.records[10], damaged.records[25]
    damaged.flip(damaged.records[33].bytes_offset)
    places = [in_record.offset + 60, in_bytes.bytes_offset + in_bytes.length // 2]
    found = findings_with(damaged, places)
    assert any(f.offset == in_record.offset and "commit 10 is lost" in f.message for f in found)
    assert any(f.commit == 33 and "do not fit" in f.message for f in found)
    for place in places:
        sector = place // 512 * 512
        assert any(
            f.severity is Severity.DAMAGE and f.offset < sector + 512 and f.offset >= 8192 for f in found
        )
    assert {f.commit for f in found if "do not fit" in f.message} == {33}
    assert any("cannot read" in f.message and f.commit == 25 for f in found)


@pytest.mark.parametrize("slot", SLOT_OFFSETS)
def test_a_slot_the_device_cannot_read_is_a_warning(damaged: Damaged, slot: int) -> None:
    (found,) = findings_with(damaged, [slot])
    assert (found.severity, found.offset) == (Severity.WARNING, slot)


def test_the_newest_record_cannot_be_read(damaged: Damaged) -> None:
    head = damaged.records[COMMITS]
    assert any(f.severity is Severity.DAMAGE for f in findings_with(damaged, [head.offset]))


def test_the_history_goes_on_behind_a_sector_that_cannot_be_read(damaged: Damaged) -> None:
    file = BadSectors(damaged.image, [damaged.records[20].offset])
    store = Store.open(str(damaged.path), opener=lambda path, writable: file)
    whole = [
        n
        for n, r in damaged.records.items()
        if not file.bad.intersection((r.offset // 512, (r.bytes_offset - 1) // 512))
    ]
    assert [record.id for record in store.records()] == sorted(whole, reverse=True)
    assert COMMITS > len(whole) > COMMITS // 2
    store.close()


class BusyFile(MemoryFile):
    """A reader's; after the first look at `at`, a writer does its work."""

    def __init__(self, disk: MemoryDisk, at: int, work: Callable[[], object]) -> None:
        super().__init__(disk, writable=False)
        self.at = at
        self.work: Callable[[], object] | None = work

    def pread(self, length: int, offset: int) -> bytes:
        data = super().pread(length, offset)
        if self.work is not None and offset == self.at and length == RECORD_SIZE:
            work, self.work = self.work, None
            work()
        return data


def check_beside(disk: MemoryDisk, at: int, work: Callable[[], object]) -> list[Finding]:
    """The check of a reader that opened before `work`, which is done while the check looks at `at`."""
    found = Store.open("memory", opener=stores.opener(disk))
    found.file = BusyFile(disk, at, work)
    return list(check_store(found))


def test_p8_commits_made_while_the_end_is_looked_at_are_no_damage() -> None:
    """It sees no record there, and then whole ones behind, which were written since."""
    disk, _ = stores.filled(3)
    writer = stores.open_store(disk, writable=True)
    end = writer.published_end
    assert check_beside(disk, end, lambda: [stores.commit(writer) for _ in range(3)]) == []
    assert writer.durable_id == 6
    writer.close()


def test_p8_a_commit_behind_the_end_that_was_sealed_anew_is_no_damage() -> None:
    """A reader may see a commit whole whose write then fails for want of room and is repeated."""
    disk, _ = stores.filled(3)
    writer = stores.open_store(disk, writable=True)
    log = writer.log
    assert log is not None
    stores.queue(writer, b"tried twice")
    first = log.take()
    assert first is not None
    end = first.offset
    reader = Store.open("memory", opener=stores.opener(disk))
    disk.put(b"".join(first.buffers), end)

    def again() -> None:
        log.failed(first, WriteFailed(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        stores.commit(writer)
        stores.commit(writer)

    reader.file = BusyFile(disk, first.end, again)
    assert list(check_store(reader)) == []
    assert writer.durable_id == 6
    writer.close()


def test_damage_behind_the_end_beside_a_writer_is_found() -> None:
    disk, _ = stores.filled(3)
    writer = stores.open_store(disk, writable=True)
    end = writer.published_end

    def work() -> None:
        for _ in range(3):
            stores.commit(writer)
        stores.flip(disk, end + 50)

    found = check_beside(disk, end, work)
    assert [(finding.severity, finding.commit, finding.offset) for finding in found] == [
        (Severity.DAMAGE, 4, end)
    ]
    writer.close()
