"""P1, P3 and P6 together: whatever a crash leaves, every save that returned is in the newest commit, whole.

Random saves, renames, removals and links through the vfs on a recorded file; then every file a crash may
have left is opened (tests/support/crash_states.py), its newest commits are compared path by path, and
further saves are made through a vfs.
"""

import os
import random
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import trio

from commitfs.errors import CorruptError, FsError, StoreError
from commitfs.format.keys import ROOT_INO
from commitfs.store.committer import GroupCommitter
from commitfs.store.stage import Stager
from commitfs.store.store import Store
from commitfs.store.txn import Txn
from commitfs.vfs import commits
from commitfs.vfs.api import Ctx
from commitfs.vfs.check import check_trees
from commitfs.vfs.create import create_store
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs
from tests.support.crash_check import assert_sound, head_id
from tests.support.crash_file import CrashFile, Trace, Write, crash_opener
from tests.support.crash_load import short_tail
from tests.support.crash_mutants import StageSyncMerged
from tests.support.crash_states import CrashState, Enumerator
from tests.support.memory_file import MemoryDisk

CTX = Ctx(uid=0, gid=0, pid=1)
DIRS = (b"", b"d", b"d/e")
NAMES = (b"a", b"b", b"c.txt")
View = dict[bytes, bytes | None]
"""Contents by path; None for a directory."""


def view_of(store: Store, commit: int) -> View:
    snapshot = Snapshot(store, store.record(commit))
    found: View = {}
    for path, ino, kind in snapshot.walk():
        directory = kind == stat.S_IFDIR >> 12
        found[path] = None if directory else snapshot.read(ino, 0, snapshot.attr(ino).size)
    return found


class Saver:
    """A vfs in use, and the same on a dictionary."""

    sizes = (0, 5, 300, 300, 2500, 70_000)

    def __init__(self, vfs: Vfs, trace: Trace, seed: int) -> None:
        self.vfs = vfs
        self.trace = trace
        self.random = random.Random(seed)
        self.model: View = {}

    async def lookup(self, path: bytes) -> int:
        ino: int = ROOT_INO
        for name in filter(None, path.split(b"/")):
            ino = (await self.vfs.lookup(ino, name, CTX)).ino
        return ino

    async def place(self, path: bytes) -> tuple[int, bytes]:
        folder, _, name = path.rpartition(b"/")
        return await self.lookup(folder), name

    async def save(self, path: bytes, data: bytes) -> None:
        parent, name = await self.place(path)
        if path in self.model:
            opened = await self.vfs.open(await self.lookup(path), os.O_WRONLY | os.O_TRUNC, CTX)
        else:
            opened, _ = await self.vfs.create(parent, name, 0o644, os.O_WRONLY, CTX)
        half = len(data) // 2
        await self.vfs.write(opened.fh, 0, data[:half])
        await self.vfs.write(opened.fh, half, data[half:])
        await self.vfs.flush(opened.fh)
        self.model[path] = data
        self.saved()
        await self.vfs.release(opened.fh)

    def saved(self) -> None:
        """A commit point returned: all that happened is in a durable commit, and in no later one."""
        store = self.vfs.store
        self.trace.ack(int(store.durable_id))
        assert view_of(store, int(store.durable_id)) == self.model

    async def step(self) -> None:
        draw = self.random.random()
        path = b"/".join(filter(None, (self.random.choice(DIRS), self.random.choice(NAMES))))
        if path.rpartition(b"/")[0] not in {b"", *self.model}:
            await self.mkdir(path.rpartition(b"/")[0])
        elif draw < 0.6 or self.model.get(path) is None:
            size = self.random.choice(self.sizes)
            await self.save(path, self.random.randbytes(size) or b"x")
        elif draw < 0.8:
            target = b"moved %d" % self.random.randrange(3)
            await self.vfs.rename(*(await self.place(path)), *(await self.place(target)), 0, CTX)
            self.model[target] = self.model.pop(path)
        else:
            await self.vfs.unlink(*(await self.place(path)), CTX)
            del self.model[path]

    async def mkdir(self, path: bytes) -> None:
        try:
            await self.vfs.mkdir(*(await self.place(path)), 0o755, CTX)
        except FsError:
            assert path == b"d/e"  # its parent is missing as well
            await self.mkdir(b"d")
            return
        self.model[path] = None


async def use(store: Store, trace: Trace, seed: int, steps: int) -> View:
    """Random work on a store; what is in its newest commit afterwards."""
    committer = GroupCommitter(store, inline=True)
    stager = Stager(store, committer)
    async with trio.open_nursery() as nursery:
        await nursery.start(committer.run)
        vfs = Vfs(store, committer, stager, settle=1000.0)
        await nursery.start(vfs.run)
        saver = Saver(vfs, trace, seed)
        saver.model = view_of(store, head_id(store))
        for _ in range(steps):
            await saver.step()
        await vfs.close()
        saver.saved()
        stager.close()
        nursery.cancel_scope.cancel()
    return saver.model


@pytest.fixture(autouse=True)
def _short_tail() -> Iterator[None]:
    with short_tail():
        yield


class Opened:
    """Opens states, and knows what has to be in them."""

    def __init__(self, path: Path, right: dict[int, View]) -> None:
        self.path = path
        self.right = right
        self.newest: dict[int, int] = {}

    def check(self, number: int, state: CrashState) -> None:
        if state.image is not None:
            self.newest[state.digest] = self.open(number, bytes(state.image))
        assert state.acked <= self.newest[state.digest] <= state.placed, state.what

    def open(self, number: int, image: bytes) -> int:
        disk, trace = MemoryDisk(image), Trace(image)
        store = Store.open(str(self.path), writable=True, opener=crash_opener(disk, trace))
        newest = head_id(store)
        for commit in range(max(1, newest - 1), newest + 1):
            assert view_of(store, commit) == self.right[commit]
        if number % 8 == 0:
            assert_sound(store)
            assert list(check_trees(store)) == []
        if number % 16 == 0:
            model = trio.run(use, store, trace, number, 3)
            store.close()
            store = Store.open(str(self.path), opener=crash_opener(disk, trace))
            assert view_of(store, head_id(store)) == model
            assert list(check_trees(store)) == []
        store.close()
        return newest


@dataclass
class Run:
    """Recorded work through a vfs: the trace, and what each commit holds."""

    path: Path
    trace: Trace
    right: dict[int, View]

    @classmethod
    def make(
        cls, folder: Path, *, seed: int, steps: int, file: type[CrashFile] = CrashFile, align: int = 8
    ) -> "Run":
        path = folder / "store"
        create_store(path, uid=0, gid=0, align=align)
        contents = path.read_bytes()
        disk, trace = MemoryDisk(contents), Trace(contents)
        trace.ack(1)
        trace.placed(1)
        store = Store.open(
            str(path), writable=True, opener=lambda name, writable: file(disk, trace, writable=writable)
        )
        with patch.object(Store, "begin", marking(Store.begin, trace)):
            trio.run(use, store, trace, seed, steps)
        right = {commit: view_of(store, commit) for commit in range(1, head_id(store) + 1)}
        assert list(check_trees(store)) == []
        store.close()
        return cls(path, trace, right)

    def check(self, *, per_prefix: int = 24, destroys: int = 0) -> int:
        """Open every state; how many there were."""
        opened = Opened(self.path, self.right)
        enumerator = Enumerator(self.trace, seed=1, per_prefix=per_prefix, exhaustive=6, destroys=destroys)
        for number, state in enumerate(enumerator.states()):
            opened.check(number, state)
        return len(opened.newest)


@pytest.fixture
def small_spill() -> Iterator[None]:
    """Files of more than 16 KiB are staged, not from 1 MiB on."""
    with (
        patch.object(commits, "SPILL_BYTES", 16 << 10),
        patch.object(Saver, "sizes", (300, 9_000, 40_000, 70_000)),
    ):
        yield


def test_saves_through_the_vfs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.make(tmp_path, seed=61, steps=60)
    assert len(run.right) > 25
    states = run.check()
    assert states > 500
    with capsys.disabled():
        print(f"\n  {len(run.right)} commits, {len(run.trace.ops)} operations, {states} states", end="")


@pytest.mark.usefixtures("small_spill")
def test_staged_saves_through_the_vfs(tmp_path: Path) -> None:
    run = Run.make(tmp_path, seed=62, steps=30)
    assert sum(isinstance(op, Write) and op.stage for op in run.trace.ops) > 10
    assert run.check() > 300


@pytest.mark.usefixtures("small_spill")
def test_a_save_that_returns_before_its_staged_data_is_durable_is_found_out(tmp_path: Path) -> None:
    run = Run.make(tmp_path, seed=62, steps=30, file=StageSyncMerged)
    with pytest.raises((AssertionError, CorruptError)):
        run.check()


@pytest.mark.usefixtures("small_spill")
@pytest.mark.parametrize("align", [512, 4096])
def test_saves_on_a_medium_that_destroys_what_lies_beside_a_write(tmp_path: Path, align: int) -> None:
    run = Run.make(tmp_path, seed=63, steps=20, align=align)
    assert run.check(per_prefix=16, destroys=align) > 200


def test_packed_saves_are_lost_there(tmp_path: Path) -> None:
    run = Run.make(tmp_path, seed=63, steps=20)
    with pytest.raises((AssertionError, StoreError)):
        run.check(per_prefix=16, destroys=512)


def marking(begin: Callable[[Store, int], Txn], trace: Trace) -> Callable[[Store, int], Txn]:
    """`Store.begin` that says to the trace which commit may be there from now on."""

    def begin_marked(self: Store, expect: int = 0) -> Txn:
        txn = begin(self, expect)
        trace.placed(int(txn.id))
        return txn

    return begin_marked
