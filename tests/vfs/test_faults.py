"""A sync that fails, as the vfs passes it on: who hears of it, what stays, and what goes on."""

import errno
import os
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from commitfs.errors import CommitfsError, CorruptError
from commitfs.format.keys import ROOT_INO
from commitfs.store.file import StoreFile
from commitfs.vfs.api import SetAttr
from commitfs.vfs.content import SPILL_BYTES
from commitfs.vfs.history import COMMITS_INO
from commitfs.vfs.vfs import Vfs
from tests.support.crash_load import short_commits
from tests.support.failing_file import Faults, Kind
from tests.support.faulty import PIECE, fail, failed_close, in_newest, noise, refusal, reopened, whole, write
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import LimitedDisk, opener, until
from tests.support.world import CTX, committed, lookup, names, new, newest, open_vfs, save
from tests.vfs.conftest import Opener


@pytest.mark.parametrize("sync", ["write_durable", "sync_stage"])
@pytest.mark.parametrize("kind", [Kind.LOST, Kind.HALF_LOST])
async def test_p6_a_failed_sync_ends_saving_and_nothing_else(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener, sync: str, kind: Kind
) -> None:
    data = noise(SPILL_BYTES + PIECE)
    async with open_vfs(path, opener=failing, clean=False) as vfs:
        old = await save(vfs, b"old", b"old contents")
        acknowledged = newest(vfs)
        fh, ino = await new(vfs, b"f")
        await write(vfs, fh, data)
        other, _ = await new(vfs, b"g")
        await vfs.write(other, 0, b"g")
        fail(faults, sync, errno.EIO, kind=kind)
        await failed_close(vfs, fh)
        faults.heal()
        assert vfs.store.durable_id == acknowledged
        for act in (
            vfs.flush(fh),
            vfs.flush(other),
            vfs.write(fh, 0, b"x"),
            vfs.fsync(other, False),
            vfs.open(old, os.O_WRONLY, CTX),
            vfs.create(ROOT_INO, b"h", 0o644, os.O_WRONLY, CTX),
            vfs.mkdir(ROOT_INO, b"d", 0o755, CTX),
            vfs.unlink(ROOT_INO, b"old", CTX),
            vfs.rename(ROOT_INO, b"old", ROOT_INO, b"new", 0, CTX),
            vfs.setattr(old, SetAttr(mode=0o600), None, CTX),
            vfs.setxattr(old, b"user.x", b"x", CTX),
        ):
            assert await refusal(act) in (errno.EROFS, errno.EIO), act
        assert await whole(vfs, old) == b"old contents"
        assert await whole(vfs, ino) == data
        assert {name for name, _ in await names(vfs, ROOT_INO)} == {b"old", b"f", b"g"}
        commit = (await vfs.lookup(COMMITS_INO, b"%08d" % acknowledged, CTX)).ino
        past = (await vfs.lookup(commit, b"old", CTX)).ino
        assert await whole(vfs, past) == b"old contents"
    found = reopened(disk)
    assert found.pop(b"old") == b"old contents"
    assert found in ({}, {b"f": data}), "what was not acknowledged is there whole or not at all"
    async with open_vfs(path, opener=opener(disk)) as vfs:
        await save(vfs, b"after", b"it")
        assert await whole(vfs, await lookup(vfs, b"old")) == b"old contents"


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_commit_larger_than_a_recovery_reads_fails_in_the_middle(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener, code: int, at: int
) -> None:
    """Its surplus had room and cannot be written: no later commit may build on what it left."""
    one, two = noise(800_000, 1), noise(900_000, 2)
    with short_commits(64 << 10):
        async with open_vfs(path, opener=failing, clean=False) as vfs:
            ino = await save(vfs, b"f", one)
            before = newest(vfs)
            fh = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
            await write(vfs, fh, two)
            fail(faults, "write_stage", code, at=at)
            await failed_close(vfs, fh)
            faults.heal()
            assert await refusal(vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)) == errno.EROFS
            assert await refusal(vfs.flush(fh)) in (errno.EROFS, errno.EIO)
            assert newest(vfs) == vfs.store.durable_id == before
            assert committed(vfs, b"f") == one
            assert await whole(vfs, ino) == two
    assert reopened(disk) == {b"f": one}


async def latch_with_staged_changes(vfs: Vfs, faults: Faults) -> None:
    """A stage's sync fails while a directory waits to be committed."""
    fh, _ = await new(vfs, b"f")
    await write(vfs, fh, noise(SPILL_BYTES + PIECE))
    await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    await trio.testing.wait_all_tasks_blocked()
    fail(faults, "sync_stage", errno.EIO)
    await failed_close(vfs, fh)
    assert vfs.live.staged


@pytest.mark.expect_logs("staged changes could not be committed")
async def test_the_settle_task_outlives_a_failed_sync(
    path: Path, faults: Faults, failing: Opener, mock_clock: trio.testing.MockClock
) -> None:
    async with open_vfs(path, settle=1.0, opener=failing, clean=False) as vfs:
        await latch_with_staged_changes(vfs, faults)
        for _ in range(3):
            mock_clock.jump(2.0)
            await trio.testing.wait_all_tasks_blocked()
        assert await names(vfs, await lookup(vfs, b"d")) == []


# Reads

READ_CALLS = 60
"""At least so many reads of the device are made to fail in turn."""


async def read_all(vfs: Vfs, wanted: dict[bytes, bytes], commit: int) -> tuple[int, int]:
    """Read every file in the live tree and in a commit: how many were whole, and how many were refused.
    Anything but the right bytes or EIO fails the test."""
    whole_files = refused = 0
    for name, data in wanted.items():
        for past in (False, True):
            try:
                root = (await vfs.lookup(COMMITS_INO, b"%08d" % commit, CTX)).ino if past else ROOT_INO
                found = await vfs.lookup(root, name, CTX)
                assert found.ino, name
                assert await whole(vfs, found.ino) == data, (name, past)
            except (CorruptError, InterruptedError):
                refused += 1
            else:
                whole_files += 1
    return whole_files, refused


@pytest.mark.parametrize(
    ("kind", "code"), [(Kind.ERROR, errno.EIO), (Kind.SHORT, errno.EIO), (Kind.ERROR, errno.EINTR)]
)
async def test_p7_each_read_fails_once_and_hides_nothing(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener, kind: Kind, code: int
) -> None:
    """Whoever reads then is told; the next read succeeds, and saving is not touched."""
    wanted = {b"%d" % n: noise(3000 + 40_000 * (n % 4), n) for n in range(24)}
    async with open_vfs(path, opener=opener(disk)) as vfs:
        for name, data in wanted.items():
            await save(vfs, name, data)
        saved = newest(vfs)
    calls = at = struck = 0
    while at <= calls:
        at += 1
        async with open_vfs(path, opener=failing) as vfs:
            faults.names, faults.kind, faults.errno = frozenset({"pread"}), kind, code
            faults.calls, faults.at, faults.lasting = 0, at, False
            faults.hit.clear()
            _, refused = await read_all(vfs, wanted, saved)
            calls = max(calls, faults.calls)
            struck += bool(refused)
            assert bool(refused) <= bool(faults.hit)
            faults.heal()
            assert await read_all(vfs, wanted, saved) == (2 * len(wanted), 0)
            assert vfs.store.latched is None
            wanted[b"0"] = b"%d" % at
            await save(vfs, b"again", wanted[b"0"])
            await vfs.rename(ROOT_INO, b"again", ROOT_INO, b"0", 0, CTX)
            await vfs.settle()
            saved = newest(vfs)
    assert struck >= READ_CALLS


# Looking into history


async def listing(vfs: Vfs) -> list[bytes]:
    return [name for name, _ in await names(vfs, COMMITS_INO)]


async def test_p5_history_of_a_full_store(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener
) -> None:
    async with open_vfs(path, opener=failing) as vfs:
        await save(vfs, b"f", b"f")
        saved = newest(vfs)
        await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
        fail(faults, "write_durable", errno.ENOSPC)
        for _ in range(2):
            commit = (await vfs.lookup(COMMITS_INO, b"%08d" % saved, CTX)).ino
            assert await whole(vfs, (await vfs.lookup(commit, b"f", CTX)).ino) == b"f"
            assert (await vfs.lookup(COMMITS_INO, b"latest", CTX)).ino
            assert {b"%08d" % saved, b"latest"} <= set(await listing(vfs))
        assert vfs.store.durable_id == saved
        faults.heal()
        await listing(vfs)
        assert vfs.store.durable_id == newest(vfs) == saved + 1
        assert in_newest(vfs, b"d")
    assert reopened(disk) == {b"f": b"f", b"d": None}


async def test_p5_history_of_a_store_that_latched(path: Path, faults: Faults, failing: Opener) -> None:
    async with open_vfs(path, opener=failing, clean=False) as vfs:
        await save(vfs, b"g", b"g")
        saved = newest(vfs)
        await latch_with_staged_changes(vfs, faults)
        latest = await vfs.readlink((await vfs.lookup(COMMITS_INO, b"latest", CTX)).ino)
        assert latest == b"%08d" % saved
        commit = (await vfs.lookup(COMMITS_INO, latest, CTX)).ino
        assert await whole(vfs, (await vfs.lookup(commit, b"g", CTX)).ino) == b"g"
        assert await listing(vfs) == [b"%08d" % n for n in range(1, saved + 1)] + [b"latest"]


# The end, and two closes at once


@pytest.mark.parametrize("failed", [0, 2, 4])
async def test_the_last_commits_are_made_although_one_fails(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener, failed: int
) -> None:
    async with open_vfs(path, opener=failing, clean=False) as vfs:
        files = [await save(vfs, b"%d" % n, b"old") for n in range(5)]
        fail(faults, "write_stage", errno.ENOSPC)
        for n, ino in enumerate(files):
            fh = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
            await write(vfs, fh, noise(SPILL_BYTES + PIECE) if n == failed else b"new %d" % n)
        await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
        with pytest.raises((OSError, CommitfsError)):
            await vfs.close()
        assert vfs.store.durable_id == newest(vfs)
    wanted: dict[bytes, bytes | None] = {b"%d" % n: b"new %d" % n for n in range(5)}
    assert reopened(disk) == wanted | {b"%d" % failed: b"old", b"d": None}


class SlowStage(MemoryFile):
    """A file whose sync of stages takes as long as the test wants."""

    def __init__(self, disk: MemoryDisk, *, writable: bool, error: OSError | None) -> None:
        super().__init__(disk, writable=writable)
        self.error = error
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def sync_stage(self) -> None:
        self.begun.set()
        assert self.go_on.wait(30)
        if self.error is not None:
            raise self.error
        super().sync_stage()


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "lost")])
async def test_p1_neither_of_two_closes_returns_before_the_stage_is_synced(
    path: Path, disk: LimitedDisk, error: OSError | None
) -> None:
    files: list[SlowStage] = []

    def open_slow(_path: str, writable: bool) -> StoreFile:
        files.append(SlowStage(disk, writable=writable, error=error))
        return files[-1]

    data = noise(SPILL_BYTES + PIECE)
    outcomes: list[bool] = []
    async with open_vfs(path, opener=open_slow, clean=False) as vfs:
        ino = await save(vfs, b"f", b"old")
        one = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
        two = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
        await write(vfs, one, data)
        await vfs.write(two, len(data), b"two")
        before = newest(vfs)

        async def flush(fh: int) -> None:
            try:
                await vfs.flush(fh)
            except (OSError, CommitfsError):
                outcomes.append(False)
            else:
                outcomes.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush, one)
            nursery.start_soon(flush, two)
            try:
                await until(files[0].begun.is_set)
                await trio.testing.wait_all_tasks_blocked()
                assert outcomes == []
                assert newest(vfs) == before
            finally:
                files[0].go_on.set()
        assert outcomes == [error is None] * 2
        assert (vfs.store.durable_id > before) == (error is None)
    assert reopened(disk) == {b"f": b"old" if error else data + b"two"}
