"""Groups, sealing, what fails and what then (S3, S5 to S8)."""

import errno
from collections.abc import Sequence
from itertools import pairwise

import pytest

from commitfs.errors import ReadOnlyError
from commitfs.format.node import NO_ROOT
from commitfs.format.record import COMMIT, FIRST, LAST, STAGE, Record, WalkState, walk
from commitfs.format.slot import SLOT_OFFSETS, SLOT_SIZE, Slot, parse_slot
from commitfs.native import crc32c
from commitfs.store.file import WriteFailed
from commitfs.store.log import Log
from commitfs.store.store import Store
from commitfs.types import Buffer
from tests.support import stores
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import commit, ids, open_store, queue


def log_of(store: Store) -> Log:
    assert store.log is not None
    return store.log


def on_disk(disk: MemoryDisk, store: Store) -> list[Record]:
    state = WalkState.at_start(store.store_number)
    return list(walk(bytes(disk.cache[8192:]), 8192, state, crc32c).records)


def slots(disk: MemoryDisk) -> list[Slot]:
    found = [parse_slot(disk.cache[at : at + SLOT_SIZE], crc32c) for at in SLOT_OFFSETS]
    return [slot for slot in found if isinstance(slot, Slot)]


class Watched(MemoryFile):
    """Notes what is written, and fails when told to."""

    def __init__(self, disk: MemoryDisk, *, writable: bool) -> None:
        super().__init__(disk, writable=writable)
        self.written: list[tuple[str, int, int]] = []
        self.fail: dict[str, OSError] = {}

    def _note(self, what: str, offset: int, size: int) -> None:
        if what in self.fail:
            raise self.fail[what]
        self.written.append((what, offset, size))

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._note("records", offset, sum(map(len, buffers)))
        self.disk.put(b"".join(buffers), offset)

    def write_aside(self, data: Buffer, offset: int) -> None:
        self._note("slot" if offset < 8192 else "zeros", offset, len(data))
        self.disk.put(data, offset)

    def write_stage(self, data: Buffer, offset: int) -> None:
        self._note("stage", offset, len(data))
        super().write_stage(data, offset)

    def sync_stage(self) -> None:
        self._note("sync stage", 0, 0)


def watched(align: int = 8) -> tuple[MemoryDisk, Watched, Store]:
    disk = stores.disk(align)
    file = Watched(disk, writable=True)
    store = Store.open("memory", writable=True, opener=lambda _path, _writable: file)
    return disk, file, store


def of_kind(file: Watched, what: str) -> list[tuple[int, int]]:
    return [(offset, size) for kind, offset, size in file.written if kind == what]


class TestGroups:
    def test_are_one_range_and_one_sync(self) -> None:
        _, file, store = watched()
        tickets = [queue(store, b"x" * n) for n in (10, 2000, 3)]
        store.flush()
        assert of_kind(file, "records") == [(8192, tickets[-1].record.end - 8192)]
        assert all(ticket.done for ticket in tickets)

    def test_are_sealed_with_session_chain_synced_and_flags(self) -> None:
        disk, _, store = watched()
        for size in (1, 3, 2):
            for _ in range(size):
                queue(store)
            store.flush()
        records = on_disk(disk, store)
        assert [record.flags for record in records] == [FIRST | LAST, 0, 0, LAST, 0, LAST]
        starts = [records[n].offset for n in (0, 1, 1, 1, 4, 4)]
        assert [record.synced for record in records] == starts, "S3"
        assert len({record.session for record in records}) == 1
        assert [record.chain for record in records] == [0, *(record.crc for record in records[:-1])]

    def test_keep_their_order_under_one_flush_each(self) -> None:
        disk, _, store = watched()
        for _ in range(100):
            queue(store)
        store.flush()
        assert [record.id for record in on_disk(disk, store)] == list(range(1, 101))

    def test_end_with_a_stage(self) -> None:
        disk, file, store = watched()
        log = log_of(store)
        queue(store)
        end = log.stage_end(1 << 16)
        log.tail.lay_behind(end, 0)
        entry = log.place_stage(end)
        assert entry is not None
        behind = queue(store)
        store.flush()
        assert behind.record.offset == end == entry.record.end
        assert len(of_kind(file, "records")) == 2
        assert [record.kind for record in on_disk(disk, store)] == [COMMIT, STAGE, COMMIT]
        assert entry.record.id == 1

    def test_are_not_larger_than_a_recovery_should_read(self) -> None:
        _, file, store = watched()
        tickets = [queue(store, bytes(1 << 20)) for _ in range(10)]
        store.flush()
        sizes = [size for _, size in of_kind(file, "records")]
        assert len(sizes) == 3
        assert max(sizes) < 5 << 20
        assert all(ticket.done for ticket in tickets)

    def test_a_new_session_begins_at_every_open(self) -> None:
        disk = stores.disk()
        for _ in range(3):
            store = open_store(disk, writable=True)
            commit(store)
            commit(store)
            store.close()
        records = on_disk(disk, store)
        assert len({record.session for record in records}) == 3
        assert [bool(record.flags & FIRST) for record in records] == [True, False] * 3

    def test_the_head_is_complete_once_it_is_written(self) -> None:
        _, _, store = watched()
        ticket = queue(store)
        assert store.head == ticket.record
        assert store.record(1) == ticket.record
        assert ticket.record.session == 0
        store.flush()
        assert store.head == ticket.record == store.record(1)
        assert ticket.record.session != 0


class TestNoRoom:
    def test_begin_refuses_and_nothing_has_happened(self) -> None:
        disk = stores.limited_disk()
        store = open_store(disk, writable=True)
        commit(store)
        disk.limit = len(disk.cache)
        before = bytes(disk.cache)
        for expect in (2 << 20, 20 << 20):
            with pytest.raises(OSError, match="space") as caught:
                store.begin(expect)
            assert caught.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="space"):
            store.reserve(2 << 20)
        assert disk.cache == before
        assert store.next_id == 2
        assert commit(store, b"small").id == 2
        assert store.latched is None

    def test_what_was_reserved_fits(self) -> None:
        disk = stores.limited_disk()
        store = open_store(disk, writable=True)
        store.reserve(8 << 20)
        disk.limit = len(disk.cache)

        def fill() -> None:
            for n in range(8):
                commit(store, bytes(900_000 + n))

        fill()
        with pytest.raises(OSError, match="space"):
            fill()
        assert store.latched is None

    def test_a_write_without_room_stays_queued_and_is_made_in_a_new_session(self) -> None:
        disk, file, store = watched()
        commit(store)
        file.fail["records"] = WriteFailed(errno.ENOSPC, "No space left on device")
        tickets = [queue(store, b"%d" % n) for n in range(3)]
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                store.flush()
        assert not any(ticket.done for ticket in tickets)
        assert all(isinstance(ticket.error, OSError) for ticket in tickets)
        assert store.latched is None
        assert store.bytes_of(tickets[2].record) == b"2"
        tickets.append(queue(store, b"3"))
        file.fail.clear()
        store.flush()
        assert all(ticket.done and ticket.error is None for ticket in tickets)
        records = on_disk(disk, store)
        assert [record.id for record in records] == [1, 2, 3, 4, 5]
        assert records[0].session != records[1].session
        assert records[1].flags & FIRST
        store.close()
        assert ids(open_store(disk)) == [5, 4, 3, 2, 1]

    def test_stale_records_of_the_attempt_do_not_fit_the_next(self) -> None:
        disk, file, store = watched()
        commit(store)

        class Partly(Watched):
            def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
                self.disk.put(b"".join(buffers), offset)
                raise WriteFailed(errno.ENOSPC, "No space left on device")

        log_of(store).file = Partly(disk, writable=True)
        tickets = [queue(store, b"same") for _ in range(2)]
        with pytest.raises(OSError, match="No space"):
            store.flush()
        stale = bytes(disk.cache[tickets[1].record.offset : tickets[1].record.end])
        log_of(store).file = file
        # Only the first is written before the power goes: the second, left from before, must not follow.
        group = log_of(store).take()
        assert group is not None
        disk.put(b"".join(group.buffers)[: tickets[0].record.end - group.offset], group.offset)
        assert disk.cache[tickets[1].record.offset : tickets[1].record.end] == stale
        assert open_store(disk).next_id == 3

    def test_of_zeros_or_slots_only_waits(self) -> None:
        disk, file, store = watched()
        file.fail["slot"] = file.fail["zeros"] = WriteFailed(errno.ENOSPC, "No space left on device")
        for _ in range(40):
            commit(store, bytes(50_000))
        assert store.latched is None
        assert store.durable_id == 40
        assert max(slot.head.id if slot.head else 0 for slot in slots(disk)) == 0
        file.fail.clear()
        commit(store)
        assert max(slot.head.id if slot.head else 0 for slot in slots(disk)) == 40


class TestLatch:
    @pytest.mark.parametrize("what", ["records", "slot", "zeros"])
    @pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
    def test_a_failed_sync_latches(self, what: str, number: int) -> None:
        disk, file, store = watched()
        for _ in range(15):
            commit(store)
        if what == "zeros":
            commit(store, bytes(700_000))
        file.fail[what] = OSError(number, "device")
        ticket = queue(store, bytes(200_000))
        behind = queue(store)

        def flush_and_go_on() -> None:
            for _ in range(3):
                store.flush()
                queue(store)

        with pytest.raises((OSError, ReadOnlyError)):
            flush_and_go_on()
        assert store.latched is not None
        if what == "records":
            assert ticket.error is file.fail[what]
            assert behind.error is not None
        file.fail.clear()
        writes = len(file.written)
        with pytest.raises(ReadOnlyError, match="opened again"):
            store.begin()
        with pytest.raises(ReadOnlyError, match="opened again"):
            store.reserve(1)
        with pytest.raises(ReadOnlyError, match="opened again"):
            store.flush()
        assert store.read(8192, 4) == b"PTR3"
        store.close()
        assert len(file.written) == writes, "nothing is written any more, not even at close"
        again = open_store(disk, writable=True)
        assert again.durable_id >= 15
        commit(again)

    @pytest.mark.parametrize("what", ["stage", "sync stage"])
    def test_a_failed_stage_latches(self, what: str) -> None:
        _, file, store = watched()
        commit(store)
        file.fail[what] = OSError(errno.EIO, "device")
        txn = store.begin(20 << 20)

        def fill() -> None:
            for _ in range(8):
                txn.add(bytes(1 << 20))
            txn.finish(root=NO_ROOT, time_ns=0)

        with pytest.raises(OSError, match="device"):
            fill()
        assert store.latched is not None


class TestSlotWrites:
    def test_every_16_commits_into_the_older_one(self) -> None:
        disk, file, store = watched()
        for _ in range(100):
            commit(store)
        places = [offset for offset, _ in of_kind(file, "slot")]
        assert len(places) == 6
        assert all(a != b for a, b in pairwise(places)), "S7: they alternate"
        named = sorted(slot.head.id if slot.head else 0 for slot in slots(disk))
        assert named == [80, 96]

    def test_every_4_mib(self) -> None:
        _, file, store = watched()
        for _ in range(8):
            commit(store, bytes(1 << 20))
        store.flush()
        assert len(of_kind(file, "slot")) == 2

    def test_only_of_what_was_acknowledged(self) -> None:
        disk, file, store = watched()
        for _ in range(14):
            commit(store)
        for _ in range(10):
            queue(store)
        group = log_of(store).take()
        assert group is not None
        log_of(store).do_chores()
        assert of_kind(file, "slot") == []
        log_of(store).written(group)
        log_of(store).do_chores()
        assert max(slot.head.id if slot.head else 0 for slot in slots(disk)) == 24

    def test_at_close_and_not_twice(self) -> None:
        disk, file, store = watched()
        commit(store)
        store.close()
        assert len(of_kind(file, "slot")) == 1
        for _ in range(3):
            file.closed = False
            Store.open("memory", writable=True, opener=lambda _path, _writable: file).close()
        assert len(of_kind(file, "slot")) == 1
        assert [slot.oldest_id for slot in slots(disk)] == [0, 1] or [s.oldest_id for s in slots(disk)] == [
            1,
            0,
        ]

    def test_names_a_whole_record(self) -> None:
        disk, _, store = watched()
        for _ in range(40):
            commit(store)
        for slot in slots(disk):
            assert slot.head is not None
            assert slot.head == on_disk(disk, store)[slot.head.id - 1]


class TestTail:
    def test_room_nobody_needed_is_given_back(self) -> None:
        disk, _, store = watched()
        commit(store)
        store.reserve(50 << 20)
        assert len(disk.cache) > 50 << 20
        store.close()
        assert len(disk.cache) < 2 << 20
        assert ids(open_store(disk, writable=True)) == [1]

    def test_zeros_are_laid_ahead_and_commits_stay_in_them(self) -> None:
        _, file, store = watched()
        for _ in range(300):
            commit(store, bytes(10_000))
        zeros = of_kind(file, "zeros")
        laid = zeros[0][0]
        for what, offset, size in file.written:
            if what == "zeros":
                assert offset == laid
                laid += size
            elif what == "records":
                assert offset + size <= laid
        assert len(zeros) == 4

    @pytest.mark.parametrize("align", [512, 4096])
    def test_zeros_share_no_unit_with_records_of_an_aligned_store(self, align: int) -> None:
        # A group beyond the zeros claims the rest of its last unit as well.
        disk, file, store = watched(align)
        log = log_of(store)
        file.fail["zeros"] = WriteFailed(errno.ENOSPC, "No space left on device")
        for size in range(30):
            commit(store, bytes(50_000 + size))
        file.fail.clear()
        log.tail.extend(log.placed_end)
        assert of_kind(file, "zeros")[-1][0] >= log.published_end
        assert log.published_end % align == 0
        commit(store)
        store.close()
        assert len(ids(open_store(disk, writable=True))) == 31

    def test_zeros_never_fall_on_records(self) -> None:
        # S8: a group beyond the zeros claims its range before it is written.
        disk, file, store = watched()
        log = log_of(store)
        file.fail["zeros"] = WriteFailed(errno.ENOSPC, "No space left on device")
        for n in range(30):
            commit(store, bytes([n + 1]) * 50_000)
        file.fail.clear()
        end = log.published_end
        assert log.tail.zeros_end >= end
        log.tail.extend(log.placed_end)
        assert of_kind(file, "zeros")[-1][0] >= end
        store.close()
        again = open_store(disk)
        assert [again.bytes_of(again.record(n + 1))[:1] for n in range(30)] == [
            bytes([n + 1]) for n in range(30)
        ]
