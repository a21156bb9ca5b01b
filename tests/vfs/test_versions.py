"""The commits that changed a path: compared with the path in every commit and in the one before."""

import os
import random
import stat
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import trio

from commitfs.errors import FsError
from commitfs.store.store import Store
from commitfs.vfs.live import MAX_CHANGES
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.versions import changes_of
from commitfs.vfs.vfs import Vfs
from tests.support.world import CTX, lookup, open_vfs, save_again

NAMES = [b"a", b"b", b"c"]
PATHS = [b"/".join(parts) for n in (1, 2, 3) for parts in product(NAMES, repeat=n)]


async def act(vfs: Vfs, rng: random.Random) -> None:
    """Something at random, which may not be possible."""
    parents = [1]
    for path in PATHS:
        try:
            ino = await lookup(vfs, path)
        except (FileNotFoundError, FsError):
            continue
        if stat.S_ISDIR((await vfs.getattr(ino, CTX)).mode) and path.count(b"/") < 2:
            parents.append(ino)
    parent, other = rng.choice(parents), rng.choice(parents)
    name, target = rng.choice(NAMES), rng.choice(NAMES)
    match rng.randrange(8):
        case 0 | 1:
            await vfs.mkdir(parent, name, stat.S_IFDIR | 0o755, CTX)
        case 2 | 3:
            await save_again(vfs, parent, name, os.urandom(20))
        case 4:
            await vfs.unlink(parent, name, CTX)
        case 5:
            await vfs.rmdir(parent, name, CTX)
        case 6:
            await vfs.rename(parent, name, other, target, 0, CTX)
        case 7:
            found = await vfs.lookup(parent, name, CTX)
            if found.ino:
                await vfs.link(found.ino, other, target, CTX)


async def build(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with open_vfs(path) as vfs:
        for _ in range(150):
            try:
                await act(vfs, rng)
            except FsError:
                continue
            if rng.random() < 0.7:
                await vfs.settle()


def below(snapshot: Snapshot, ino: int, base: bytes) -> Iterator[tuple[object, ...]]:
    inode = snapshot.inode(ino)
    yield base, ino, inode.changed
    if stat.S_ISDIR(inode.mode):
        for _, dentry in snapshot.cookies(ino):
            yield base, dentry
            yield from below(snapshot, dentry.ino, base + b"/" + dentry.name)


def state(snapshot: Snapshot, path: bytes) -> object:
    """All that a path is in a commit, with the names that lead to it and everything below."""
    ino, seen = 1, []
    for name in path.split(b"/"):
        try:
            dentry = snapshot.dentry(ino, name)
        except FsError:
            return None
        seen.append(dentry)
        ino = dentry.ino
    return seen, list(below(snapshot, ino, path))


def slowly(store: Store, path: bytes) -> list[int]:
    assert store.head is not None
    states = [state(Snapshot(store, store.record(i)), path) for i in range(1, int(store.head.id) + 1)]
    return [i + 1 for i in range(len(states) - 1, -1, -1) if states[i] != (states[i - 1] if i else None)]


@pytest.mark.parametrize("seed", range(6))
def test_every_path_of_random_histories(tmp_path: Path, seed: int) -> None:
    trio.run(build, tmp_path / "s.db", seed)
    store = Store.open(tmp_path / "s.db")
    try:
        assert store.head is not None
        assert store.head.id > 30
        for path in PATHS:
            assert [int(record.id) for record in changes_of(store, path)] == slowly(store, path), path
    finally:
        store.close()


def test_more_changes_than_facts_hold(tmp_path: Path) -> None:
    async def many() -> None:
        async with open_vfs(tmp_path / "s.db") as vfs:
            for name in (b"x", b"y"):
                await vfs.mkdir(1, name, stat.S_IFDIR | 0o755, CTX)
            await vfs.settle()
            x, y = await lookup(vfs, b"x"), await lookup(vfs, b"y")
            for number in range(MAX_CHANGES + 10):
                await vfs.mkdir(x, b"%d" % number, stat.S_IFDIR | 0o755, CTX)
            await vfs.mkdir(y, b"last", stat.S_IFDIR | 0o755, CTX)
            await vfs.settle()

    trio.run(many)
    store = Store.open(tmp_path / "s.db")
    assert [int(record.id) for record in changes_of(store, b"y")] == [3, 2]
    assert [int(record.id) for record in changes_of(store, b"y/last")] == [3]
    store.close()
