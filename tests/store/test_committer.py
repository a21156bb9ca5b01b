"""Group commit in a trio loop, on a file whose writes are let through one at a time."""

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from commitfs.errors import ReadOnlyError
from commitfs.format.node import NO_ROOT
from commitfs.store.committer import GroupCommitter, Pace
from commitfs.store.file import WriteFailed
from commitfs.store.heads import COMMITS_APART
from commitfs.store.store import Store
from commitfs.types import Buffer
from tests.support import stores
from tests.support.gates import Gate, GatedFile, OverlappedGatedFile
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import commit, ids, open_store, queue, until


def gated(kind: type[GatedFile] = GatedFile) -> tuple[MemoryDisk, Gate, Store]:
    disk, gate = stores.disk(), Gate()
    file = kind(disk, gate)
    return disk, gate, Store.open("memory", writable=True, opener=lambda _path, _writable: file)


@asynccontextmanager
async def background(work: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(work)
        yield
        nursery.cancel_scope.cancel()


class Committers:
    """Tasks that each make one commit, and what became of them, in order."""

    def __init__(self, store: Store, committer: GroupCommitter) -> None:
        self.store = store
        self.committer = committer
        self.done: list[int] = []
        self.failed: list[tuple[int, BaseException]] = []

    async def one(self) -> None:
        ticket = queue(self.store)
        try:
            await self.committer.acknowledge(ticket)
        except (OSError, ReadOnlyError) as error:
            self.failed.append((ticket.record.id, error))
        else:
            self.done.append(ticket.record.id)


async def test_those_that_arrive_during_a_sync_share_the_next() -> None:
    disk, gate, store = gated()
    committer = GroupCommitter(store, inline=False)
    tasks = Committers(store, committer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.one)
        await until(lambda: len(gate.groups) == 1)
        for _ in range(5):
            nursery.start_soon(tasks.one)
        await until(lambda: store.next_id == 7)
        assert tasks.done == [], "nothing is acknowledged before its sync"
        gate.let()
        await until(lambda: tasks.done == [1])
        await until(lambda: len(gate.groups) == 2)
        gate.let()
    assert sorted(tasks.done) == [1, 2, 3, 4, 5, 6]
    assert len(gate.groups) == 2
    assert gate.groups[1][0] == gate.groups[0][0] + gate.groups[0][1], "one range behind the other"
    store.close()
    assert ids(open_store(disk)) == [6, 5, 4, 3, 2, 1]


async def test_those_that_are_about_to_commit_join_the_first_group() -> None:
    store = open_store(stores.disk(), writable=True)
    tasks = Committers(store, GroupCommitter(store, inline=True))
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(tasks.one)
    assert sorted(tasks.done) == list(range(1, 11))
    synced = [record.synced for record in store.records()]
    assert len(set(synced)) == 1, "one group"


async def test_with_the_queue_taken_while_others_place() -> None:
    disk, gate, store = gated()
    committer = GroupCommitter(store, inline=False)
    tasks = Committers(store, committer)
    sequence = trio.testing.Sequencer()

    async def first() -> None:
        async with sequence(0):
            ticket = queue(store)
        await committer.acknowledge(ticket)
        async with sequence(2):
            assert store.durable_id == 1

    async def second() -> None:
        async with sequence(1):
            await until(lambda: len(gate.groups) == 1)
            ticket = queue(store)
            gate.let()
        await committer.acknowledge(ticket)
        async with sequence(3):
            assert store.durable_id == 2

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        nursery.start_soon(second)
        await until(lambda: len(gate.groups) == 2)
        gate.let()
    assert tasks.done == []
    assert ids(open_store(disk)) == [2, 1]


async def test_no_room_fails_those_that_wait_and_is_tried_again() -> None:
    disk, gate, store = gated()
    committer = GroupCommitter(store, inline=False)
    tasks = Committers(store, committer)
    full = WriteFailed(errno.ENOSPC, "No space left on device")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(tasks.one)
        gate.let(full)
    assert [(type(e), e.args) for _, e in tasks.failed] == [(type(full), full.args)] * 3
    assert len({id(e) for _, e in tasks.failed}) == 3, "one raised by many keeps all their frames"
    assert store.latched is None
    assert store.durable_id == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.one)
        gate.let()
    assert tasks.done == [4]
    assert store.durable_id == 4, "the queued ones went with it"
    gate.let(full)
    ticket = queue(store)
    with pytest.raises(OSError, match="space"):
        await committer.acknowledge(ticket)
    gate.let()
    await committer.acknowledge(ticket)
    assert ticket.done
    await committer.drain()
    assert ids(open_store(disk)) == [5, 4, 3, 2, 1]


async def test_no_room_fails_those_behind_a_stage_too() -> None:
    disk, gate, store = gated()
    log = store.log
    assert log is not None
    committer = GroupCommitter(store, inline=False)
    tasks = Committers(store, committer)
    full = WriteFailed(errno.ENOSPC, "No space left on device")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.one)
        await until(lambda: len(gate.groups) == 1)
        end = log.stage_end(1 << 16)
        log.tail.lay_behind(end, 0)
        assert log.place_stage(end) is not None
        nursery.start_soon(tasks.one)
        await until(lambda: store.next_id == 3)
        gate.let(full)
    assert [(type(e), e.args) for _, e in tasks.failed] == [(type(full), full.args)] * 2
    for _ in range(3):
        gate.let()
    await committer.drain()
    assert store.durable_id == 2
    assert ids(open_store(disk)) == [2, 1]


async def test_a_failed_sync_latches_for_all() -> None:
    disk, gate, store = gated()
    committer = GroupCommitter(store, inline=False)
    tasks = Committers(store, committer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.one)
        await until(lambda: len(gate.groups) == 1)
        nursery.start_soon(tasks.one)
        await until(lambda: store.next_id == 3)
        gate.let(OSError(errno.EIO, "device"))
    assert tasks.done == []
    kinds = {commit_id: type(error) for commit_id, error in tasks.failed}
    assert kinds == {1: OSError, 2: ReadOnlyError}
    assert store.latched is not None
    with pytest.raises(ReadOnlyError):
        await committer.drain()
    assert len(gate.groups) == 1
    assert open_store(disk).head is None


@pytest.mark.parametrize("inline", [True, False])
async def test_a_cancelled_leader_leaves_no_commit_behind(inline: bool) -> None:
    store = open_store(stores.disk(), writable=True)
    committer = GroupCommitter(store, inline=inline)
    with trio.CancelScope() as scope:
        scope.cancel()
        await committer.acknowledge(queue(store))
    assert scope.cancelled_caught
    assert store.durable_id == 0
    await committer.acknowledge(queue(store))
    assert store.durable_id == 2


@pytest.mark.parametrize("kind", [GatedFile, OverlappedGatedFile])
async def test_a_group_under_way_is_brought_to_its_end(kind: type[GatedFile]) -> None:
    # C2: its leader is cancelled while the sync runs.
    _, gate, store = gated(kind)
    committer = GroupCommitter(store, inline=False)
    tasks = Committers(store, committer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.one)
        await until(lambda: len(gate.groups) == 1)
        nursery.cancel_scope.cancel()
        gate.let()
    assert store.durable_id == 1
    assert store.log is not None
    assert store.log.in_flight is None
    store.close()


async def test_waiters_behind_a_cancelled_one_go_on() -> None:
    _, gate, store = gated()
    committer = GroupCommitter(store, inline=False)
    tasks = Committers(store, committer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.one)
        await until(lambda: len(gate.groups) == 1)
        async with trio.open_nursery() as inner:
            inner.start_soon(tasks.one)
            await until(lambda: store.next_id == 3)
            inner.cancel_scope.cancel()
        nursery.start_soon(tasks.one)
        await until(lambda: store.next_id == 4)
        gate.let()
        await until(lambda: len(gate.groups) == 2)
        gate.let()
    assert sorted(tasks.done) == [1, 3]
    assert store.durable_id == 3


async def test_drain_waits_for_all_that_is_queued() -> None:
    _, gate, store = gated()
    committer = GroupCommitter(store, inline=False)
    await committer.drain()
    tickets = [queue(store) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.drain)
        await until(lambda: len(gate.groups) == 1)
        nursery.start_soon(committer.drain)
        gate.let()
    assert all(ticket.done for ticket in tickets)


async def test_the_background_lays_zeros_and_writes_slots() -> None:
    disk = stores.disk()
    store = open_store(disk, writable=True)
    log = store.log
    assert log is not None
    committer = GroupCommitter(store, inline=True)
    async with background(committer.run):
        for _ in range(40):
            txn = store.begin(100_000)
            txn.add(bytes(100_000))
            await committer.acknowledge(txn.finish(root=NO_ROOT, time_ns=0))
        # A slot is due again only when the newest commit is far enough from the one it names.
        await until(lambda: log.heads.named > 40 - COMMITS_APART and not log.tail.low(log.placed_end))
    store.close()


async def test_a_failure_in_the_background_latches() -> None:
    disk = stores.disk()

    class NoSlots(MemoryFile):
        def write_aside(self, data: Buffer, offset: int) -> None:
            if offset < 8192:
                raise OSError(errno.EIO, "device")
            super().write_aside(data, offset)

    store = Store.open("memory", writable=True, opener=lambda _path, _writable: NoSlots(disk))
    committer = GroupCommitter(store, inline=True)
    async with background(committer.run):
        for _ in range(16):
            await committer.acknowledge(queue(store))
        await until(lambda: store.latched is not None)
        with pytest.raises(ReadOnlyError):
            store.begin()


@pytest.mark.parametrize("inline", [True, False, None])
async def test_on_a_real_file(tmp_path: Path, inline: bool | None) -> None:
    path = tmp_path / "s.db"
    Store.create(path)
    store = Store.open(path, writable=True)
    committer = GroupCommitter(store, inline=inline)

    async def some(count: int) -> None:
        for _ in range(count):
            ticket = queue(store, b"x" * 2000)
            await committer.acknowledge(ticket)
            assert ticket.done

    async with background(committer.run), trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(some, 20)
    await committer.drain()
    store.close()
    again = Store.open(path)
    assert ids(again) == list(range(160, 0, -1))
    again.close()


async def test_a_reader_has_no_committer() -> None:
    disk = stores.disk()
    commit(open_store(disk, writable=True))
    with pytest.raises(ReadOnlyError):
        GroupCommitter(open_store(disk))


class TestPace:
    def chosen(self, inline: float, beside: float, rounds: int = 640) -> float:
        """The share of groups written inline on a device where that takes `inline` seconds."""
        pace = Pace()
        count = 0
        for _ in range(rounds):
            chose = pace.choose_inline()
            pace.took(chose, inline if chose else beside)
            count += chose
        return count / rounds

    def test_takes_what_is_quicker_and_goes_on_trying(self) -> None:
        assert self.chosen(130e-6, 180e-6) > 0.9
        assert 0.01 < self.chosen(800e-6, 200e-6) < 0.1
        assert 0.01 < self.chosen(300e-6, 200e-6) < 0.1

    def test_never_stalls_the_loop_on_a_slow_device(self) -> None:
        assert self.chosen(2.4e-3, 2.5e-3) == 0

    def test_one_stall_does_not_decide(self) -> None:
        pace = Pace()
        for _ in range(100):
            chose = pace.choose_inline()
            pace.took(chose, 130e-6 if chose else 180e-6)
        pace.took(True, 0.05)
        assert any(pace.choose_inline() for _ in range(2))

    def test_notices_that_the_device_has_become_slow(self) -> None:
        pace = Pace()
        for _ in range(100):
            chose = pace.choose_inline()
            pace.took(chose, 130e-6 if chose else 180e-6)
        late = 0
        for _ in range(320):
            chose = pace.choose_inline()
            pace.took(chose, 5e-3)
            late += chose
        assert late < 10


async def test_nobody_waits_for_others_where_none_come() -> None:
    """A save that is alone takes no turn of the loop for the sake of a group."""
    store = open_store(stores.disk(), writable=True)
    committer = GroupCommitter(store, inline=True)
    committer.others_come = lambda: 0
    coroutine = committer.acknowledge(queue(store))
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert store.durable_id == 1


class Coming:
    """Requests that come without end; each of the first `tasks` that is heard makes a commit."""

    def __init__(self, tasks: int, begin: Callable[[], None]) -> None:
        self.tasks = tasks
        self.begin = begin
        self.turns = 0

    def __call__(self) -> int:
        self.turns += 1
        if self.turns <= self.tasks:
            self.begin()
        return self.turns


class Clock:
    """Goes on by a millisecond at each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


async def test_those_that_come_join_for_as_long_as_a_write_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(stores.disk(), writable=True)
    committer = GroupCommitter(store, inline=True, clock=Clock())
    tasks = Committers(store, committer)
    committer.others_come = coming = Coming(5, lambda: nursery.start_soon(tasks.one))
    monkeypatch.setattr(Pace, "typical", lambda _: 0.02)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.one)
    assert sorted(tasks.done) == [1, 2, 3, 4, 5, 6]
    assert len({record.synced for record in store.records()}) == 1, "one group"
    assert 20 <= coming.turns <= 22, "for 20 ms, however many come"


async def test_it_does_not_wait_for_those_whom_nobody_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that could read a request are busy: waiting would help nobody."""
    store = open_store(stores.disk(), writable=True)
    committer = GroupCommitter(store, inline=True, clock=Clock())
    looks = 0

    def one_waits() -> int:
        nonlocal looks
        looks += 1
        return 7

    committer.others_come = one_waits
    monkeypatch.setattr(Pace, "typical", lambda _: 1.0)
    await committer.acknowledge(queue(store))
    assert store.durable_id == 1
    assert looks <= 4


async def test_a_commit_that_is_in_no_group_is_no_endless_wait() -> None:
    store = open_store(stores.disk(), writable=True)
    committer = GroupCommitter(store, inline=True)
    committer.others_come = lambda: 0
    ticket = queue(store)
    assert store.log is not None
    store.log.queue.clear()
    with pytest.raises(RuntimeError, match="in no group"):
        await committer.acknowledge(ticket)
