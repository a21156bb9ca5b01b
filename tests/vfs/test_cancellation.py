"""Whoever waits for something and is cancelled leaves nothing half done, and nobody waiting (C2).

pyfuse3 cancels no request while the mount serves; a mount that breaks down cancels all of them, and commits
what is staged after that.
"""

import os
from pathlib import Path

import pytest
import trio

from commitfs.format.keys import ROOT_INO
from commitfs.vfs.api import SetAttr
from tests.support.gates import LARGE, GatedWorld, gated_vfs, waiting, written
from tests.support.stores import until
from tests.support.world import CTX, close, newest, save, save_again


class CancelAt(trio.abc.Instrument):
    """Cancels a task at the end of its `step`-th step: where it awaits for that many times."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.task: trio.lowlevel.Task | None = None
        self.scope = trio.CancelScope()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def work(world: GatedWorld, did: list[str]) -> None:
    """A save of each kind; `did` grows by what returned."""
    vfs = world.vfs
    fh, ino = await written(world, b"small", b"s")
    await vfs.flush(fh)
    did.append("close")
    await vfs.release(fh)
    fh, _ = await written(world, b"big", LARGE)
    await vfs.write(fh, len(LARGE), b"end")
    await vfs.fsync(fh, False)
    did.append("fsync")
    await vfs.write(fh, 0, b"changed")
    await vfs.rename(ROOT_INO, b"big", ROOT_INO, b"renamed", 0, CTX)
    did.append("rename")
    await close(vfs, fh)
    fh = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
    await vfs.flush(fh)
    await vfs.release(fh)
    did.append("release")
    await vfs.setattr(ino, SetAttr(size=3), None, CTX)
    did.append("truncate")
    await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    await vfs.settle()
    did.append("settle")


Contents = dict[bytes, bytes | None]

STATES: list[tuple[str, Contents]] = [
    ("", {}),
    ("close", {b"small": b"s"}),
    ("fsync", {b"small": b"s", b"big": LARGE + b"end"}),
    ("rename", {b"small": b"s", b"renamed": b"changed" + LARGE[7:] + b"end"}),
    ("release", {b"small": b"", b"renamed": b"changed" + LARGE[7:] + b"end"}),
    ("truncate", {b"small": bytes(3), b"renamed": b"changed" + LARGE[7:] + b"end"}),
    ("settle", {b"small": bytes(3), b"renamed": b"changed" + LARGE[7:] + b"end", b"d": None}),
]


async def cancelled_at(path: Path, step: int) -> bool:
    """Cancel `work` there, with somebody else at work beside it; whether it got as far."""
    did = [""]
    async with gated_vfs(path) as world:
        instrument = CancelAt(step)

        async def cancelled() -> None:
            with instrument.scope:
                instrument.task = trio.lowlevel.current_task()
                await work(world, did)

        async def beside() -> None:
            for number in range(5):
                await save_again(world.vfs, ROOT_INO, b"beside", b"%d" % number)

        trio.lowlevel.add_instrument(instrument)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancelled)
                nursery.start_soon(beside)
        finally:
            trio.lowlevel.remove_instrument(instrument)
        others: Contents = {b"beside": b"4"}
        names = [name for name, _ in STATES]
        found = world.durable()
        reached = [state | others for _, state in STATES[names.index(did[-1]) :]]
        assert found in reached, f"step {step}: {did[-1]} returned, and it is not there"
        # What is left of it is nobody's trouble.
        with trio.fail_after(20):
            await save(world.vfs, b"after", b"a")
        commits = world.vfs.commits
        assert commits is not None
        assert not any(node.spilling for node in commits.pending)
    assert world.durable()[b"after"] == b"a"
    return instrument.scope.cancelled_caught


@pytest.mark.parametrize("part", range(4))
async def test_cancelled_at_each_await(path: Path, part: int) -> None:
    """Whoever waits for a commit and is cancelled leaves it whole, and nobody else waits for him."""
    step = 1 + part
    while await cancelled_at(path, step):
        step += 4
    assert step > 20


async def test_cancelled_while_its_sync_runs(world: GatedWorld) -> None:
    """C2: it leads the group, and brings it to its end."""
    vfs = world.vfs
    fh, _ = await written(world, b"f")
    scope = trio.CancelScope()

    async def flush() -> None:
        with scope:
            await vfs.flush(fh)

    async with waiting(world.commits, flush()):
        scope.cancel()
    assert world.durable() == {b"f": b"x"}
    before = newest(vfs)
    await vfs.release(fh)
    assert newest(vfs) == before, "nothing of it is pending"


async def test_cancelled_while_another_leads(world: GatedWorld) -> None:
    """Its commit stays queued and goes with the next group; its handle owes a commit point still."""
    vfs = world.vfs
    first, _ = await written(world, b"first")
    second, _ = await written(world, b"second")
    scope = trio.CancelScope()

    async def flush() -> None:
        with scope:
            await vfs.flush(second)

    async with trio.open_nursery() as nursery, waiting(world.commits, vfs.flush(first)):
        before = newest(vfs)
        nursery.start_soon(flush)
        await until(lambda: newest(vfs) == before + 1)
        scope.cancel()
        await until(lambda: scope.cancelled_caught)
    assert scope.cancelled_caught
    assert world.durable() == {b"first": b"x"}, "nobody was told of the second"
    await vfs.flush(second)
    assert newest(vfs) == before + 2
    assert world.durable() == {b"first": b"x", b"second": b"x"}
