"""What may happen to a file while something about it is waited for (docs/concurrency.md).

Writes of commits and stages are held at gates (tests/support/gates.py), so that each order is forced and
none is met by chance.  What `world.durable()` holds is what a crash at that moment would leave.
"""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import Sequencer, wait_all_tasks_blocked

from commitfs.errors import FsError
from commitfs.format.keys import ROOT_INO
from commitfs.vfs.api import SetAttr
from commitfs.vfs.history import COMMITS_INO
from tests.support.gates import LARGE, GatedWorld, waiting, written
from tests.support.stores import until
from tests.support.world import CTX, close, committed, contents, new, newest, save

# -- while the commit of a file's close is under way


async def test_nothing_is_acknowledged_before_it_is_durable(world: GatedWorld) -> None:
    fh, _ = await written(world, b"f")
    async with waiting(world.commits, world.vfs.flush(fh)) as flushed:
        assert committed(world.vfs, b"f") == b"x", "the commit is built"
        await wait_all_tasks_blocked()
        assert not flushed
        assert world.durable() == {}
    assert flushed
    assert world.durable() == {b"f": b"x"}


async def test_a_rename_meanwhile_is_a_commit_behind_it(world: GatedWorld) -> None:
    vfs = world.vfs
    fh, _ = await written(world, b"f")
    async with waiting(world.commits, vfs.flush(fh)) as flushed:
        await vfs.rename(ROOT_INO, b"f", ROOT_INO, b"g", 0, CTX)
        assert not flushed
        world.commits.let()
        await until(lambda: bool(flushed))
        assert world.durable() == {b"f": b"x"}
    await vfs.settle()
    assert world.durable() == {b"g": b"x"}


async def test_an_unlink_meanwhile_is_a_commit_behind_it(world: GatedWorld) -> None:
    vfs = world.vfs
    fh, ino = await written(world, b"f")
    async with waiting(world.commits, vfs.flush(fh)) as flushed:
        await vfs.unlink(ROOT_INO, b"f", CTX)
        world.commits.let()
        await until(lambda: bool(flushed))
        assert world.durable() == {b"f": b"x"}, "its close returned: it is a commit, whatever came later"
        assert await vfs.read(fh, 0, 10) == b"x"
    await vfs.release(fh)
    vfs.forget([(ino, 1)])
    await vfs.settle()
    assert world.durable() == {}
    assert ino not in vfs.live.nodes


async def test_its_release_meanwhile_is_no_second_commit(world: GatedWorld) -> None:
    vfs = world.vfs
    fh, _ = await written(world, b"f")
    before = newest(vfs)
    async with waiting(world.commits, vfs.flush(fh)):
        await vfs.release(fh)
        assert newest(vfs) == before + 1
    assert newest(vfs) == before + 1


async def test_bytes_written_meanwhile_wait_for_their_own_close(world: GatedWorld) -> None:
    vfs = world.vfs
    fh, ino = await written(world, b"f", b"first")
    other = (await vfs.open(ino, os.O_RDWR, CTX)).fh
    async with waiting(world.commits, vfs.flush(fh)) as flushed:
        await vfs.write(other, 0, b"AGAIN")
        assert await contents(vfs, ino, 5) == b"AGAIN"
        world.commits.let()
        await until(lambda: bool(flushed))
        assert world.durable() == {b"f": b"first"}
    await close(vfs, other)
    assert world.durable() == {b"f": b"AGAIN"}


async def test_two_closes_of_one_file_are_acknowledged_each_by_its_own_sync(world: GatedWorld) -> None:
    """P1: the second builds on the first while that is under way, and neither waits for the other."""
    vfs = world.vfs
    first, ino = await written(world, b"f", b"a")
    second = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
    await vfs.write(second, 1, b"b")
    before, sequence, done = newest(vfs), Sequencer(), []

    async def one() -> None:
        async with sequence(0):
            world.commits.shut = True
        await vfs.flush(first)
        done.append(1)

    async def two() -> None:
        async with sequence(1):
            await world.commits.reached(1)
        await vfs.flush(second)
        done.append(2)

    world.commits.groups.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two)
        nursery.start_soon(one)
        await until(lambda: newest(vfs) == before + 2)
        assert done == []
        world.commits.let()
        await world.commits.reached(2)
        assert done == [1]
        assert world.durable() == {b"f": b"ab"}
        world.commits.let()
    assert done == [1, 2]
    assert int(vfs.store.durable_id) == before + 2
    world.commits.shut = False
    assert committed(vfs, b"f", before + 1) == committed(vfs, b"f", before + 2) == b"ab"


async def test_fsync_of_a_directory_waits_for_what_is_under_way(world: GatedWorld) -> None:
    """P4: the change went with the close of a file, whose commit is not durable yet."""
    vfs = world.vfs
    fh, _ = await written(world, b"f")
    await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    folder = await vfs.opendir(ROOT_INO, CTX)
    before, synced = newest(vfs), trio.Event()

    async def fsyncdir() -> None:
        await vfs.fsyncdir(folder, False)
        assert world.durable() == {b"d": None, b"f": b"x"}
        synced.set()

    async with trio.open_nursery() as nursery, waiting(world.commits, vfs.flush(fh)):
        nursery.start_soon(fsyncdir)
        await wait_all_tasks_blocked()
        assert not synced.is_set()
    assert synced.is_set()
    assert newest(vfs) == before + 1, "there was nothing left to commit"
    await vfs.releasedir(folder)


@pytest.mark.parametrize("how", ["fsyncdir", "settle", "history"])
async def test_a_change_made_meanwhile_is_settled_behind_it(world: GatedWorld, how: str) -> None:
    vfs = world.vfs
    fh, _ = await written(world, b"f")
    folder = await vfs.opendir(ROOT_INO, CTX)
    before, settled = newest(vfs), trio.Event()

    async def settle() -> None:
        if how == "fsyncdir":
            await vfs.fsyncdir(folder, False)
        elif how == "settle":
            await vfs.settle()
        else:
            latest = await vfs.lookup(COMMITS_INO, b"latest", CTX)
            assert int(await vfs.readlink(latest.ino)) == before + 2
        assert world.durable() == {b"d": None, b"f": b"x"}
        settled.set()

    async with trio.open_nursery() as nursery, waiting(world.commits, vfs.flush(fh)) as flushed:
        await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
        nursery.start_soon(settle)
        await until(lambda: newest(vfs) == before + 2)
        world.commits.let()
        await until(lambda: bool(flushed))
        await wait_all_tasks_blocked()
        assert not settled.is_set()
    assert settled.is_set()
    await vfs.releasedir(folder)


async def test_a_lookup_in_history_waits_for_a_release_under_way(world: GatedWorld) -> None:
    """P4: `: > f`, then a look into history."""
    vfs = world.vfs
    fh, _ = await new(vfs, b"f")
    await vfs.flush(fh)
    before, found = newest(vfs), []

    async def look() -> None:
        latest = await vfs.lookup(COMMITS_INO, b"latest", CTX)
        found.append(int(await vfs.readlink(latest.ino)))

    async with trio.open_nursery() as nursery, waiting(world.commits, vfs.release(fh)):
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        assert not found
    assert found == [before + 1]


async def test_unmounting_waits_for_what_is_under_way(world: GatedWorld) -> None:
    vfs = world.vfs
    fh, _ = await written(world, b"f")
    await written(world, b"open", b"kept")
    closed = trio.Event()

    async def unmount() -> None:
        await vfs.close()
        assert world.durable() == {b"f": b"x", b"open": b"kept"}
        closed.set()

    async with trio.open_nursery() as nursery, waiting(world.commits, vfs.flush(fh)) as flushed:
        nursery.start_soon(unmount)
        await wait_all_tasks_blocked()
        world.commits.let()
        await until(lambda: bool(flushed))
        assert not closed.is_set(), "the commit of what was open is at the gate"
    assert closed.is_set()


# -- while a large file is on its way to a stage


@asynccontextmanager
async def spilling(world: GatedWorld, name: bytes = b"big") -> AsyncIterator[tuple[int, int]]:
    """(handle, inode) of a file whose bytes are on their way to a stage until the end of the block."""
    fh, ino = await written(world, name, LARGE)
    node = world.vfs.files.handles[fh].node
    async with waiting(world.stages, world.vfs.write(fh, len(LARGE), b"end")):
        assert node.spilling
        yield fh, ino


async def test_a_close_waits_for_its_bytes(world: GatedWorld) -> None:
    vfs = world.vfs
    flushed = trio.Event()

    async def flush(fh: int) -> None:
        await vfs.flush(fh)
        assert world.durable() == {b"big": LARGE + b"end"} or world.durable() == {b"big": LARGE}
        flushed.set()

    before = newest(vfs)
    async with trio.open_nursery() as nursery, spilling(world) as (fh, ino):
        nursery.start_soon(flush, fh)
        await wait_all_tasks_blocked()
        assert newest(vfs) == before
        assert await contents(vfs, ino, len(LARGE)) == LARGE, "readers see the bytes meanwhile"
    assert flushed.is_set()
    await close(vfs, fh)
    assert world.durable() == {b"big": LARGE + b"end"}


async def test_another_file_is_saved_meanwhile(world: GatedWorld) -> None:
    async with spilling(world) as (fh, _):
        await save(world.vfs, b"small", b"x")
        assert world.durable() == {b"small": b"x"}
    await close(world.vfs, fh)
    assert world.durable() == {b"big": LARGE + b"end", b"small": b"x"}


async def test_truncations_and_writes_wait_for_its_bytes(world: GatedWorld) -> None:
    vfs = world.vfs
    sequence, order = Sequencer(), []

    async def cut(ino: int) -> None:
        async with sequence(0):
            pass
        await vfs.setattr(ino, SetAttr(size=100), None, CTX)
        order.append("cut")

    async def write(fh: int) -> None:
        async with sequence(1):
            await wait_all_tasks_blocked()
        await vfs.write(fh, 50, b"!")
        order.append("written")

    async with trio.open_nursery() as nursery, spilling(world) as (fh, ino):
        nursery.start_soon(write, fh)
        nursery.start_soon(cut, ino)
        for _ in range(2):  # the first time, the one that writes waits for the same
            await wait_all_tasks_blocked()
        assert order == []
    assert sorted(order) == ["cut", "written"]
    short = LARGE[:50] + b"!" + LARGE[51:100]
    shown = await contents(vfs, ino, (await vfs.getattr(ino, CTX)).size)
    assert shown in (short, short.ljust(len(LARGE), b"\0") + b"end")
    await close(vfs, fh)
    assert world.durable() == {b"big": shown}


async def test_an_open_that_truncates_waits_for_its_bytes(world: GatedWorld) -> None:
    vfs = world.vfs
    opened: list[int] = []

    async def open_(ino: int) -> None:
        opened.append((await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh)

    async with trio.open_nursery() as nursery, spilling(world) as (fh, ino):
        nursery.start_soon(open_, ino)
        await wait_all_tasks_blocked()
        assert not opened
    await vfs.write(opened[0], 0, b"anew")
    await close(vfs, fh)
    await close(vfs, opened[0])
    shown = world.durable()[b"big"]
    assert shown in (b"anew", b"anew".ljust(len(LARGE), b"\0") + b"end")


async def test_a_lookup_in_history_waits_for_a_release_that_waits(world: GatedWorld) -> None:
    """P4: nothing of it is queued yet, so that there would be nothing to drain."""
    vfs = world.vfs
    before, found = newest(vfs), []

    async def look() -> None:
        latest = await vfs.lookup(COMMITS_INO, b"latest", CTX)
        found.append(int(await vfs.readlink(latest.ino)))

    async with trio.open_nursery() as nursery, spilling(world) as (fh, ino):
        other = (await vfs.open(ino, os.O_RDWR, CTX)).fh
        vfs.files.handles[other].owes = vfs.files.handles[
            fh
        ].node.pending  # as if pages of a mapping had been written through it
        nursery.start_soon(vfs.release, other)
        await wait_all_tasks_blocked()
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        assert newest(vfs) == before
        assert not found
    assert found == [before + 1]
    await close(vfs, fh)


@pytest.mark.parametrize("act", ["rename", "link"])
async def test_a_name_change_takes_its_bytes_along(world: GatedWorld, act: str) -> None:
    """P2: it is a commit point of a file with pending contents, and waits until these are in the log."""
    vfs = world.vfs
    before, done = newest(vfs), trio.Event()

    async def change(ino: int) -> None:
        if act == "rename":
            await vfs.rename(ROOT_INO, b"big", ROOT_INO, b"new", 0, CTX)
        else:
            await vfs.link(ino, ROOT_INO, b"new", CTX)
        done.set()

    async with trio.open_nursery() as nursery, spilling(world) as (fh, ino):
        nursery.start_soon(change, ino)
        await wait_all_tasks_blocked()
        assert newest(vfs) == before
        assert (await vfs.lookup(ROOT_INO, b"new", CTX)).ino == 0
    assert done.is_set()
    found = world.durable()
    assert set(found) == ({b"new"} if act == "rename" else {b"big", b"new"})
    assert all(data in (LARGE, LARGE + b"end") for data in found.values())
    await close(vfs, fh)
    assert set(world.durable().values()) == {LARGE + b"end"}


async def test_a_rename_is_refused_when_the_name_is_gone_by_then(world: GatedWorld) -> None:
    vfs = world.vfs
    before, errors = newest(vfs), []
    sequence = Sequencer()

    async def rename() -> None:
        async with sequence(0):
            pass
        try:
            await vfs.rename(ROOT_INO, b"big", ROOT_INO, b"new", 0, CTX)
        except FsError as error:
            errors.append(error.errno)

    async def unlink() -> None:
        async with sequence(1):
            await wait_all_tasks_blocked()
            await vfs.unlink(ROOT_INO, b"big", CTX)

    async with trio.open_nursery() as nursery, spilling(world) as (fh, _):
        nursery.start_soon(unlink)
        nursery.start_soon(rename)
        await wait_all_tasks_blocked()
    assert errors == [errno.ENOENT]
    assert newest(vfs) == before
    await close(vfs, fh)
    await vfs.settle()
    assert world.durable() == {}


async def test_a_rename_is_refused_when_its_target_has_come_by_then(world: GatedWorld) -> None:
    vfs = world.vfs
    errors: list[int | None] = []

    async def rename() -> None:
        try:
            await vfs.rename(ROOT_INO, b"big", ROOT_INO, b"new", 1, CTX)
        except FsError as error:
            errors.append(error.errno)

    async with trio.open_nursery() as nursery, spilling(world) as (fh, _):
        nursery.start_soon(rename)
        await wait_all_tasks_blocked()
        await save(vfs, b"new", b"came first")
    assert errors == [errno.EEXIST]
    await close(vfs, fh)
    assert world.durable() == {b"big": LARGE + b"end", b"new": b"came first"}


async def test_unmounting_waits_for_its_bytes(world: GatedWorld) -> None:
    vfs = world.vfs
    closed = trio.Event()

    async def unmount() -> None:
        await vfs.close()
        closed.set()

    async with trio.open_nursery() as nursery, spilling(world):
        nursery.start_soon(unmount)
        await wait_all_tasks_blocked()
        assert not closed.is_set()
    assert closed.is_set()
    assert world.durable()[b"big"] in (LARGE, LARGE + b"end")
