"""A process that gets no descriptor, no thread or no memory: it is told so, or goes on without, and nothing
latches."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from commitfs import native
from commitfs.errors import StoreError
from commitfs.format.node import NO_ROOT
from commitfs.format.record import seal
from commitfs.store.beside import beside
from commitfs.store.committer import GroupCommitter
from commitfs.store.file import WriteFailed, is_no_room, open_file
from commitfs.store.stage import Stager
from commitfs.store.store import Store
from tests.support.stores import ids, queue, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Store.create(tmp_path / "s.db")
    return tmp_path / "s.db"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Descriptors


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EINTR])
@pytest.mark.parametrize("writable", [True, False])
def test_each_open_fails_in_turn(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, writable: bool
) -> None:
    """One line that names the store, nothing left open, the lock given up."""
    real_open = os.open
    opens = fail_at = 0

    def failing_open(name: str, flags: int) -> int:
        nonlocal opens
        opens += 1
        if opens == fail_at:
            raise OSError(code, os.strerror(code), name)
        return real_open(name, flags)

    monkeypatch.setattr(os, "open", failing_open)
    before = descriptors()
    Store.open(path, writable=writable).close()
    assert opens == (4 if writable else 1)
    for fail_at in range(1, opens + 1):
        opens = 0
        with pytest.raises(StoreError, match=f"{path} cannot be opened: {os.strerror(code)}"):
            Store.open(path, writable=writable)
        assert opens == fail_at
        assert descriptors() == before
    opens = fail_at = 0
    Store.open(path, writable=writable).close()
    assert descriptors() == before


def test_a_file_system_without_direct_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def open_cached_only(name: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(name, flags)

    monkeypatch.setattr(os, "open", open_cached_only)
    file = open_file(str(path), True)
    data = os.urandom(1 << 20)
    file.write_stage(data, 8192)
    file.sync_stage()
    assert file.pread(len(data), 8192) == data
    file.close()


async def save(store: Store, committer: GroupCommitter, stager: Stager, count: int) -> None:
    """So many commits, and as many MiB staged beside them; all durable."""
    for _ in range(count):
        await stager.put(bytes(1 << 20))
        await committer.acknowledge(queue(store, bytes(100_000)))
    await stager.sync()


async def test_saving_needs_no_further_descriptor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records, zeros, slots and stages, once the store is open."""
    store = Store.open(path, writable=True)
    committer = GroupCommitter(store)

    def no_descriptor(*_args: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", no_descriptor)
    monkeypatch.setattr(native, "NativeCommitter", no_descriptor)
    async with trio.open_nursery() as nursery:
        await nursery.start(committer.run)
        stager = Stager(store, committer)
        await save(store, committer, stager, 40)
        nursery.cancel_scope.cancel()
    assert store.latched is None
    store.close()
    monkeypatch.undo()
    assert ids(Store.open(path)) == list(range(40, 0, -1))


# Threads


async def test_without_a_thread_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_thread(_work: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    def work(answer: int) -> int:
        if answer < 0:
            raise RuntimeError("of the work itself")
        done.append(answer)
        return answer

    done: list[int] = []
    with pytest.raises(RuntimeError, match="of the work itself"):
        await beside(work, -1)
    assert await beside(work, 1) == 1
    monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
    assert await beside(work, 2) == 2
    with pytest.raises(RuntimeError, match="of the work itself"):
        await beside(work, -1)
    assert done == [1, 2], "each once"


async def test_saving_needs_no_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_trio_thread(*_args: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    def no_native_thread() -> NoReturn:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(trio.to_thread, "run_sync", no_trio_thread)
    monkeypatch.setattr(native, "NativeCommitter", no_native_thread)
    store = Store.open(path, writable=True)
    committer = GroupCommitter(store)
    async with trio.open_nursery() as nursery:
        await nursery.start(committer.run)
        stager = Stager(store, committer)
        await save(store, committer, stager, 20)
        log = store.log
        assert log is not None
        await until(lambda: not log.chores_due())
        nursery.cancel_scope.cancel()
    assert store.latched is None
    store.close()
    assert ids(Store.open(path)) == list(range(20, 0, -1))


# Memory


class Starving:
    """A function that has no memory `times` times and then does its work."""

    def __init__(self, work: object, times: int = 1) -> None:
        self.work = work
        self.times = times

    def __call__(self, *args: object, **named: object) -> object:
        if self.times:
            self.times -= 1
            raise MemoryError
        assert callable(self.work)
        return self.work(*args, **named)


def test_a_write_that_has_no_memory_has_not_begun(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_file(str(path), True)
    calls: tuple[Callable[[], None], ...] = (
        lambda: file.write_durable([b"a", b"b"], 8192),
        lambda: file.write_aside(b"ab", 8194),
        lambda: file.begin_durable([b"a", b"b"], 8196),
    )
    for size, call in zip((8192, 8194, 8196), calls, strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(native, "_Pieces", Starving(native._Pieces))
            patch.setattr(native, "_write", Starving(native._write))
            with pytest.raises(WriteFailed) as caught:
                call()
            assert caught.value.errno == errno.ENOMEM
            assert is_no_room(caught.value)
        assert file.size() == size
        call()
    file.end_durable()
    assert file.pread(6, 8192) == b"ababab"
    file.close()


@pytest.mark.parametrize("inline", [True, False])
async def test_a_group_that_cannot_be_sealed_stays_queued(
    path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    """Whoever leads then is told, the others of the group are acknowledged by the next."""
    store = Store.open(path, writable=True)
    committer = GroupCommitter(store, inline=inline)
    told: list[str] = []

    async def one() -> None:
        ticket = queue(store, bytes(1000))
        try:
            await committer.acknowledge(ticket)
        except MemoryError:
            told.append("no memory")
        else:
            assert ticket.done
            told.append("done")

    monkeypatch.setattr("commitfs.store.log.seal", Starving(seal))
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
    assert sorted(told) == ["done"] * 4 + ["no memory"]
    assert store.latched is None
    assert store.durable_id == 5
    store.close()
    assert ids(Store.open(path)) == [5, 4, 3, 2, 1]


async def test_chores_without_memory_are_done_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(path, writable=True)
    committer = GroupCommitter(store)
    log = store.log
    assert log is not None
    starving = Starving(log.tail.extend, times=2)
    monkeypatch.setattr(log.tail, "extend", starving)
    async with trio.open_nursery() as nursery:
        await nursery.start(committer.run)
        for _ in range(200):
            await committer.acknowledge(queue(store, bytes(20_000)))
        await until(lambda: not log.chores_due())
        nursery.cancel_scope.cancel()
    assert starving.times == 0
    assert store.latched is None
    store.close()


async def test_a_stage_without_memory_is_told_and_written_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(path, writable=True)
    committer = GroupCommitter(store)
    data = os.urandom(1 << 20)
    async with trio.open_nursery() as nursery:
        await nursery.start(committer.run)
        stager = Stager(store, committer)
        monkeypatch.setattr(store.file, "write_stage", Starving(store.file.write_stage))
        offset = await stager.put(data)
        with pytest.raises(OSError, match="memory") as caught:
            await stager.sync()
        assert caught.value.errno == errno.ENOMEM
        assert store.read(offset, len(data)) == data
        await stager.sync()
        txn = store.begin(10)
        txn.add(b"refers to it")
        await committer.acknowledge(txn.finish(root=NO_ROOT, time_ns=0))
        nursery.cancel_scope.cancel()
    assert store.latched is None
    store.close()
    assert Store.open(path).read(offset, len(data)) == data
