"""An error of the file below, as the vfs passes it on: who hears of it, what stays, what goes on.

Files in memory that fail on command (tests/support/failing_file.py) or have little room
(tests/support/stores.py); at the end each is opened again, as after a crash, and checked.
"""

import errno
import os
import random
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from commitfs.errors import CommitfsError, FsError, ReadOnlyError
from commitfs.format.keys import ROOT_INO
from commitfs.store.check import check_store
from commitfs.store.file import StoreFile
from commitfs.store.store import Store
from commitfs.vfs.api import SetAttr
from commitfs.vfs.check import check_trees
from commitfs.vfs.content import SPILL_BYTES
from commitfs.vfs.create import create_store
from commitfs.vfs.history import COMMITS_INO
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs
from tests.support.crash_file import Trace, crash_opener, memory_opener
from tests.support.crash_load import short_commits
from tests.support.failing_file import FailingFile, Faults, Kind, failing_opener
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import LimitedDisk, opener, until
from tests.support.world import CTX, close, committed, contents, lookup, names, new, newest, open_vfs, save

PIECE = 128 << 10
UNLIMITED = LimitedDisk.limit
Opener = Callable[[object, bool], FailingFile]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_store(tmp_path / "store.db", uid=0, gid=0)
    return tmp_path / "store.db"


@pytest.fixture
def disk(path: Path) -> LimitedDisk:
    return LimitedDisk(path.read_bytes())


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def failing(disk: MemoryDisk, faults: Faults) -> Opener:
    return failing_opener(crash_opener(disk, Trace(b"")), faults)


def fail(faults: Faults, name: str, code: int, *, at: int = 1, kind: Kind = Kind.ERROR) -> None:
    """From its `at`-th call on, `name` fails until the fault is healed."""
    faults.names, faults.errno, faults.kind = frozenset({name}), code, kind
    faults.calls, faults.at, faults.lasting = 0, at, True


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


async def write(vfs: Vfs, fh: int, data: bytes, at: int = 0) -> None:
    """In pieces, as the kernel does."""
    for start in range(0, len(data), PIECE):
        await vfs.write(fh, at + start, data[start : start + PIECE])


async def whole(vfs: Vfs, ino: int) -> bytes:
    return await contents(vfs, ino, (await vfs.getattr(ino, CTX)).size)


async def refusal(act: Awaitable[object]) -> int | None:
    """The errno a call is refused with, None if it is not."""
    try:
        await act
    except ReadOnlyError:
        return errno.EROFS
    except (FsError, OSError) as error:
        return error.errno
    return None


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


def in_newest(vfs: Vfs, path: bytes) -> bool:
    try:
        return Snapshot(vfs.store, vfs.store.head).resolve(path) > 0
    except FsError:
        return False


def reopened(disk: MemoryDisk) -> dict[bytes, bytes | None]:
    """Contents by path (None: a directory) of the newest commit that is on the device; all is sound."""
    disk.drop_cache()
    store = Store.open("memory", opener=memory_opener(disk))
    assert list(check_store(store)) == []
    assert list(check_trees(store)) == []
    snapshot = Snapshot(store, store.head)
    found = {
        path: None if kind == stat.S_IFDIR >> 12 else snapshot.read(ino, 0, 1 << 30)
        for path, ino, kind in snapshot.walk()
    }
    store.close()
    return found


# No room


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


# A failed sync


async def failed_close(vfs: Vfs, fh: int) -> None:
    with pytest.raises((OSError, CommitfsError)):
        await vfs.flush(fh)
    assert vfs.store.latched is not None


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


async def test_the_last_commits_are_made_although_one_fails(
    path: Path, disk: LimitedDisk, faults: Faults, failing: Opener
) -> None:
    async with open_vfs(path, opener=failing, clean=False) as vfs:
        files = [await save(vfs, b"%d" % n, b"old") for n in range(5)]
        fail(faults, "write_stage", errno.ENOSPC)
        for n, ino in enumerate(files):
            fh = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
            await write(vfs, fh, noise(SPILL_BYTES + PIECE) if n == 2 else b"new %d" % n)
        await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
        with pytest.raises((OSError, CommitfsError)):
            await vfs.close()
        assert vfs.store.durable_id == newest(vfs)
    wanted: dict[bytes, bytes | None] = {b"%d" % n: b"new %d" % n for n in range(5)}
    assert reopened(disk) == wanted | {b"2": b"old", b"d": None}


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
