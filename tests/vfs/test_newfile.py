"""A commit of one new file is made in one piece (vfs/newfile.py): it must be, byte for byte, what the
general way makes of it."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import trio

from commitfs.errors import CorruptError, FsError
from commitfs.format.extent import EXTENT_MAX
from commitfs.format.keys import ROOT_INO
from commitfs.store.committer import GroupCommitter
from commitfs.store.nodes import Nodes
from commitfs.store.stage import Stager
from commitfs.store.store import Store
from commitfs.store.txn import Txn
from commitfs.vfs import commits, newfile
from commitfs.vfs.create import first_commit
from commitfs.vfs.live import Live, Node
from commitfs.vfs.vfs import Vfs
from tests.support.world import CTX, committed, lookup, new, newest, open_vfs, save

SIZES = (1, 100, 2048, 65536, 65537, EXTENT_MAX)
NAMES = [b"name%d" % n for n in range(12)]


def damaged(*_: object) -> None:
    raise CorruptError("tree node", 8192)


class Clock:
    """One microsecond later at each look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


async def walk(vfs: Vfs, seed: int) -> None:
    """Saves of new files, between all that may be staged or pending beside them."""
    random = Random(seed)
    folders = [ROOT_INO]
    held: list[int] = []
    for _ in range(150):
        folder, name = random.choice(folders), random.choice(NAMES)
        act = random.randrange(10)
        with suppress(FsError):  # the name is there, or is not
            if act < 5:
                fh, ino = await new(vfs, name, parent=folder)
                if random.randrange(8) == 0:
                    await vfs.setxattr(ino, b"user.x", random.randbytes(random.choice((3, 600))), CTX)
                await vfs.write(fh, random.choice((0, 0, 0, 5)), random.randbytes(random.choice(SIZES)))
                if random.randrange(4) == 0:
                    held.append(fh)
                else:
                    await vfs.flush(fh)
                    await vfs.release(fh)
            elif act < 7:
                await vfs.unlink(folder, name, CTX)
            elif act == 7:
                folders.append((await vfs.mkdir(folder, b"dir" + name, 0o755, CTX)).ino)
            elif act == 8:
                await vfs.rename(folder, name, random.choice(folders), random.choice(NAMES), 0, CTX)
            elif held:
                fh = held.pop()
                await vfs.flush(fh)
                await vfs.release(fh)


async def log_of(path: Path, seed: int) -> list[bytes]:
    """The bytes of every commit of such a walk on a store of its own."""
    clock = Clock()
    Store.create(path)
    store = Store.open(path, writable=True)
    first_commit(store, mode=0o755, uid=0, gid=0, now=clock())
    committer = GroupCommitter(store, inline=True)
    stager = Stager(store, committer)
    vfs = Vfs(store, committer, stager, settle=1000.0, now=clock)
    await walk(vfs, seed)
    await vfs.close()
    stager.close()
    # The first one tells the process that made it.
    found = [store.bytes_of(record) for record in store.records() if record.id > 1]
    store.close()
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_the_same_bytes_as_the_general_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    made = 0
    chosen = newfile.is_new_file

    def counting(live: Live, node: Node) -> bool:
        nonlocal made
        made += chosen(live, node)
        return chosen(live, node)

    monkeypatch.setattr(commits, "is_new_file", counting)
    ours = await log_of(tmp_path / "ours.db", seed)
    monkeypatch.setattr(commits, "is_new_file", lambda live, node: False)
    general = await log_of(tmp_path / "general.db", seed)
    assert made > 10
    assert ours == general


async def test_a_damaged_directory_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4: where the tree cannot be changed nothing has happened, and the close can be tried again."""
    async with open_vfs(tmp_path / "s.db") as vfs:
        await save(vfs, b"old", b"old")
        fh, _ = await new(vfs, b"f")
        await vfs.write(fh, 0, b"contents")
        before = newest(vfs)
        vfs.store.nodes.forget(0)
        with monkeypatch.context() as patched:
            patched.setattr(Nodes, "load", damaged)
            with pytest.raises(CorruptError):
                await vfs.flush(fh)
        assert vfs.live.broken is None
        assert newest(vfs) == before
        assert await vfs.read(fh, 0, 100) == b"contents"
        await vfs.flush(fh)
        await vfs.release(fh)
        assert committed(vfs, b"f") == b"contents"
        assert committed(vfs, b"f", before) is None


async def test_an_error_behind_the_change_stops_all_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4: half a commit is never committed by somebody else."""
    async with open_vfs(tmp_path / "s.db", clean=False) as vfs:
        await save(vfs, b"old", b"old")
        fh, _ = await new(vfs, b"f")
        await vfs.write(fh, 0, b"contents")

        def fails(*_: object, **__: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(Txn, "finish", fails)
            with pytest.raises(MemoryError):
                await vfs.flush(fh)
        assert isinstance(vfs.live.broken, MemoryError)
        before = newest(vfs)
        with pytest.raises(Exception, match="half way"):
            await save(vfs, b"g", b"other")
        assert newest(vfs) == before


async def test_half_a_batch_stops_all_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6 holds for nodes that cannot be read; for want of memory C may stop amid the edits."""
    async with open_vfs(tmp_path / "s.db", clean=False) as vfs:
        await save(vfs, b"old", b"old")
        fh, _ = await new(vfs, b"f")
        await vfs.write(fh, 0, b"contents")

        def stops(*_: object) -> int:
            vfs.live.tree.put(b"half", b"of it")
            return -errno.ENOMEM

        with monkeypatch.context() as patched:
            patched.setattr(newfile, "_new_file", stops)
            with pytest.raises(MemoryError):
                await vfs.flush(fh)
        before = newest(vfs)
        with pytest.raises(Exception, match="half way"):
            await save(vfs, b"g", b"other")
        assert newest(vfs) == before


async def test_two_makers_of_one_name(tmp_path: Path) -> None:
    """The place found by a lookup is not taken for free when somebody else has taken it since."""
    async with open_vfs(tmp_path / "s.db") as vfs:
        for name in NAMES:
            assert (await vfs.lookup(ROOT_INO, name, CTX)).ino == 0
            fh, ino = await new(vfs, name)
            with pytest.raises(FsError) as caught:
                await vfs.create(ROOT_INO, name, stat.S_IFREG | 0o644, os.O_RDWR, CTX)
            assert caught.value.errno == errno.EEXIST
            await vfs.write(fh, 0, name)
            await vfs.flush(fh)
            with pytest.raises(FsError) as caught:
                await vfs.mkdir(ROOT_INO, name, 0o755, CTX)
            assert caught.value.errno == errno.EEXIST
            await vfs.release(fh)
            assert await lookup(vfs, name) == ino
        await trio.lowlevel.checkpoint()
