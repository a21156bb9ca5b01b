"""P1 on a full disk, without a mount: who hears of it, what was taken, and what goes on."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commitfs.format.keys import ROOT_INO
from commitfs.vfs.content import SPILL_BYTES
from commitfs.vfs.vfs import Vfs
from tests.support.crash_load import short_commits
from tests.support.failing_file import Faults
from tests.support.faulty import PIECE, fail, in_newest, noise, refusal, reopened, whole, write
from tests.support.stores import LimitedDisk, opener, until
from tests.support.world import CTX, close, committed, lookup, names, new, newest, open_vfs, save
from tests.vfs.conftest import Opener

UNLIMITED = LimitedDisk.limit


async def refused_write(vfs: Vfs, fh: int, ino: int, at: int, data: bytes) -> bool:
    """Write; whether that was ENOSPC, and then it took nothing."""
    assert vfs.commits is not None
    before = await whole(vfs, ino)
    memory = vfs.commits.memory
    refused = await refusal(vfs.write(fh, at, data))
    if refused is None:
        return False
    assert refused == errno.ENOSPC
    assert await whole(vfs, ino) == before
    assert vfs.commits.memory <= memory
    assert vfs.commits.memory == sum(node.pending.memory for node in vfs.commits.pending if node.pending)
    return True


async def fill(vfs: Vfs, fh: int, ino: int, step: int = PIECE) -> bytes:
    """Append until there is no room; what was accepted."""
    accepted = await whole(vfs, ino)
    while not await refused_write(vfs, fh, ino, len(accepted), data := noise(step, len(accepted))):
        accepted += data
        assert len(accepted) < 16 << 20, "room without end"
    return accepted


async def test_p1_write_says_that_there_is_no_room(path: Path, disk: LimitedDisk) -> None:
    async with open_vfs(path, opener=opener(disk)) as vfs:
        old = await save(vfs, b"old", b"old contents")
        disk.limit = len(disk.cache)
        fh, ino = await new(vfs, b"f")
        accepted = await fill(vfs, fh, ino, 64 << 10)
        assert 0 < len(accepted) < SPILL_BYTES, "refused for want of a reservation, not of a stage"
        before = newest(vfs)
        opened = await vfs.open(old, os.O_WRONLY, CTX)
        assert await refused_write(vfs, opened.fh, old, 4, noise(900 << 10))
        await close(vfs, opened.fh)
        assert newest(vfs) == before, "no byte was accepted"
        await close(vfs, fh)
        assert committed(vfs, b"f") == accepted
        await vfs.unlink(ROOT_INO, b"f", CTX)
        await vfs.settle()
        assert committed(vfs, b"f") is None
        disk.limit = UNLIMITED
        await save(vfs, b"g", b"g" * 100_000)
    assert reopened(disk) == {b"old": b"old contents", b"g": b"g" * 100_000}


async def spill_without_room(vfs: Vfs, make_room: Callable[[], None]) -> bytes:
    """A file too large for memory fills up, another is saved meanwhile; what the first then holds."""
    fh, ino = await new(vfs, b"f")
    accepted = await fill(vfs, fh, ino)
    assert len(accepted) >= SPILL_BYTES - PIECE
    assert await refused_write(vfs, fh, ino, len(accepted) - 100_000, noise(400_000, 1))
    await save(vfs, b"small", b"small")
    make_room()
    assert not await refused_write(vfs, fh, ino, len(accepted), b"the end")
    await close(vfs, fh)
    accepted += b"the end"
    assert committed(vfs, b"f") == accepted
    await save(vfs, b"g", b"g")
    return accepted


async def test_no_room_for_a_stage(path: Path, disk: LimitedDisk) -> None:
    async with open_vfs(path, opener=opener(disk)) as vfs:
        disk.limit = len(disk.cache) + (1 << 20)
        accepted = await spill_without_room(vfs, lambda: setattr(disk, "limit", UNLIMITED))
    assert reopened(disk) == {b"f": accepted, b"small": b"small", b"g": b"g"}


@pytest.mark.parametrize("call", ["write_aside", "write_stage"])
async def test_no_room_in_a_stage(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener, call: str
) -> None:
    async with open_vfs(path, opener=failing) as vfs:
        fail(faults, call, errno.ENOSPC)
        accepted = await spill_without_room(vfs, faults.heal)
    assert faults.hit
    assert reopened(disk) == {b"f": accepted, b"small": b"small", b"g": b"g"}


async def test_a_close_is_not_acknowledged_before_its_stage_is_written(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener
) -> None:
    data = noise(SPILL_BYTES + PIECE)
    async with open_vfs(path, opener=failing) as vfs:
        fh, ino = await new(vfs, b"f")
        fail(faults, "write_stage", errno.ENOSPC)
        await write(vfs, fh, data)
        before = newest(vfs)
        for _ in range(3):
            with pytest.raises(OSError, match="space"):
                await vfs.flush(fh)
            assert newest(vfs) == before
            assert await whole(vfs, ino) == data
        faults.heal()
        await close(vfs, fh)
        assert newest(vfs) == before + 1
    assert reopened(disk) == {b"f": data}


async def test_no_room_for_a_commit_larger_than_a_recovery_reads(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener
) -> None:
    """The stage of its surplus cannot be had; later commits are none the worse for it."""
    one, two = noise(800_000, 1), noise(900_000, 2)
    with short_commits(64 << 10):
        async with open_vfs(path, opener=failing) as vfs:
            ino = await save(vfs, b"f", one)
            await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
            fh = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
            await write(vfs, fh, two)
            fail(faults, "write_aside", errno.ENOSPC)
            with pytest.raises(OSError, match="space"):
                await vfs.flush(fh)
            assert faults.hit
            assert await whole(vfs, ino) == two
            await save(vfs, b"g", b"g")
            assert committed(vfs, b"g") == b"g"
            assert committed(vfs, b"f") == one
            assert in_newest(vfs, b"d")
            faults.heal()
            await close(vfs, fh)
            assert committed(vfs, b"f") == two
            await save(vfs, b"h", b"h")
    assert reopened(disk) == {b"f": two, b"d": None, b"g": b"g", b"h": b"h"}


async def test_a_close_is_not_acknowledged_before_its_commit_is_written(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener
) -> None:
    """However often it is tried, and through whichever handle."""
    async with open_vfs(path, opener=failing) as vfs:
        fh, ino = await new(vfs, b"f")
        await vfs.write(fh, 0, b"data")
        reader = (await vfs.open(ino, os.O_RDONLY, CTX)).fh
        before = vfs.store.durable_id
        fail(faults, "write_durable", errno.ENOSPC)
        for act in (vfs.flush(fh), vfs.flush(fh), vfs.fsync(fh, False), vfs.fsync(reader, False)):
            assert await refusal(act) is not None, act
            assert vfs.store.durable_id == before
            assert await whole(vfs, ino) == b"data"
        faults.heal()
        await vfs.fsync(reader, False)
        assert vfs.store.durable_id == newest(vfs) > before
        assert committed(vfs, b"f") == b"data"
        await close(vfs, fh)
    assert reopened(disk) == {b"f": b"data"}


async def test_no_room_for_a_rename_that_is_a_commit_point(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener
) -> None:
    """Nothing was moved, and what was there before is in every commit meanwhile."""
    data = noise(900_000)
    with short_commits(64 << 10):
        async with open_vfs(path, opener=failing) as vfs:
            await save(vfs, b"f", b"old")
            fh, ino = await new(vfs, b"f.tmp")
            await write(vfs, fh, data)
            fail(faults, "write_aside", errno.ENOSPC)
            for call in (
                vfs.rename(ROOT_INO, b"f.tmp", ROOT_INO, b"f", 0, CTX),
                vfs.link(ino, ROOT_INO, b"f.new", CTX),
            ):
                assert await refusal(call) == errno.ENOSPC
                assert {name for name, _ in await names(vfs, ROOT_INO)} == {b"f", b"f.tmp"}
                assert await lookup(vfs, b"f.tmp") == ino
            await save(vfs, b"g", b"g")
            assert committed(vfs, b"f") == b"old"
            assert committed(vfs, b"f.tmp") is None
            faults.heal()
            await vfs.rename(ROOT_INO, b"f.tmp", ROOT_INO, b"f", 0, CTX)
            assert committed(vfs, b"f") == data
            await close(vfs, fh)
    assert reopened(disk) == {b"f": data, b"g": b"g"}


@pytest.mark.expect_logs("staged changes could not be committed")
async def test_p4_staged_changes_are_tried_again_until_there_is_room(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener
) -> None:
    async with open_vfs(path, settle=0.01, opener=failing) as vfs:
        before = vfs.store.durable_id
        fail(faults, "write_durable", errno.ENOSPC)
        await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
        await until(lambda: len(faults.hit) > 1)
        assert vfs.store.durable_id == before
        faults.heal()
        await until(lambda: vfs.store.durable_id > before)
    assert reopened(disk) == {b"d": None}
