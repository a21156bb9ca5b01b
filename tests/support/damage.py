"""A store with a known history, to be damaged: what is in it, which bytes each commit consists of, and how
its commits are read without giving up at what cannot be."""

import random
import stat
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import trio

from commitfs.errors import CorruptError
from commitfs.format.extent import decode_extent
from commitfs.format.inode import Blob, decode_inode, decode_xattr
from commitfs.format.keys import EXTENT, INODE, ROOT_INO, XATTR, split_key
from commitfs.format.record import Record
from commitfs.store.check import check_store
from commitfs.store.store import Store
from commitfs.vfs.check import check_trees
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs
from tests.support.world import CTX, lookup, open_vfs, save_again

View = dict[bytes, tuple[object, ...]]
"""Everything of a tree by path."""
Ranges = list[tuple[int, int]]


class Original(NamedTuple):
    """A store before it is damaged."""

    image: bytes
    records: dict[int, Record]
    views: dict[int, View]
    used: dict[int, Ranges]
    """Ranges of the file each commit consists of, sorted: its record and bytes, and what else its tree
    refers to."""

    inos: dict[int, dict[bytes, int]]
    earlier: list[bytes]
    """The slots' part of the file as it was earlier, oldest first."""

    @property
    def newest(self) -> int:
        return max(self.records)

    def touched(self, offsets: Ranges) -> set[int]:
        """Commits of which a byte lies in one of the ranges."""
        return {
            commit
            for commit, used in self.used.items()
            if any(_overlap(used, start, end) for start, end in offsets)
        }


def _overlap(used: Ranges, start: int, end: int) -> bool:
    at = bisect_right(used, (start, 1 << 63)) - 1
    return (at >= 0 and used[at][1] > start) or (at + 1 < len(used) and used[at + 1][0] < end)


# -- the store -----------------------------------------------------------------------------------


async def build(path: Path, seed: int, slots: list[bytes]) -> None:
    """Some 50 commits of small and large files, directories, links, attributes, renames and staged data;
    the last of them not named by any slot, as after a crash."""
    rand = random.Random(seed)
    async with open_vfs(path) as vfs:
        slots.append(path.read_bytes()[:4608])
        await _first_half(vfs, rand)
    slots.append(path.read_bytes()[:4608])
    async with open_vfs(path, clean=False) as vfs:
        d = await lookup(vfs, b"d")
        for number in range(20):
            await save_again(
                vfs, d if number % 3 else ROOT_INO, b"late %d" % (number % 4), rand.randbytes(150)
            )
            if number == 9:
                await vfs.rename(d, b"late 2", ROOT_INO, b"moved", 0, CTX)
                await vfs.unlink(d, b"late 1", CTX)
        await save_again(vfs, ROOT_INO, b"big", rand.randbytes(90_000))


async def _first_half(vfs: Vfs, rand: random.Random) -> None:
    await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    d = await lookup(vfs, b"d")
    await vfs.mkdir(d, b"e", 0o700, CTX)
    e = await lookup(vfs, b"d/e")
    for number in range(16):
        parent = (ROOT_INO, d, e)[number % 3]
        await save_again(vfs, parent, b"file %d" % (number % 6), rand.randbytes(rand.randint(1, 400)))
    await save_again(vfs, d, b"big", rand.randbytes(200_000))
    await vfs.symlink(e, b"short", b"../big", CTX)
    await vfs.symlink(e, b"long", b"t/" * 600, CTX)
    big = await lookup(vfs, b"d/big")
    await vfs.link(big, e, b"second name", CTX)
    await vfs.setxattr(big, b"user.short", b"value", CTX)
    await vfs.setxattr(big, b"user.long", rand.randbytes(1500), CTX)
    await vfs.settle()
    fh = (await vfs.open(big, 2, CTX)).fh
    await vfs.write(fh, 70_000, rand.randbytes(3000))
    await vfs.flush(fh)
    await vfs.release(fh)
    await save_again(vfs, ROOT_INO, b"staged", rand.randbytes(1_300_000))
    await vfs.rename(ROOT_INO, b"d", ROOT_INO, b"r", 0, CTX)
    await vfs.settle()
    await vfs.rename(ROOT_INO, b"r", ROOT_INO, b"d", 0, CTX)
    await vfs.rename(e, b"second name", ROOT_INO, b"first name", 0, CTX)
    await vfs.settle()
    for number in range(9):
        await save_again(vfs, e, b"file %d" % (number % 4), rand.randbytes(60))
    await vfs.unlink(d, b"file 1", CTX)
    await vfs.settle()


def original(folder: Path, seed: int = 1) -> Original:
    path = folder / f"original {seed}"
    earlier: list[bytes] = []
    trio.run(build, path, seed, earlier)
    image = path.read_bytes()
    store = Store.open(path)
    records = {int(record.id): record for record in store.records()}
    views, inos = {}, {}
    for commit, record in records.items():
        inos[commit] = {path: ino for path, ino, _ in Snapshot(store, record).walk()}
        view, unreadable = view_of(store, record)
        assert not unreadable
        views[commit] = view
    used = {commit: _used(store, record) for commit, record in records.items()}
    assert [*check_store(store), *check_trees(store)] == []
    store.close()
    return Original(image, records, views, used, inos, earlier)


def _used(store: Store, record: Record) -> Ranges:
    ranges = {(int(record.offset), int(record.bytes_offset) + record.length)}
    waiting = [record.root]
    while waiting:
        at = waiting.pop()
        ranges.add((at.offset, at.offset + at.length))
        if at.level:
            waiting += [child for _, child in store.nodes.children(at)]
            continue
        for key, value in store.nodes.entries(at):
            kind = split_key(key)[1]
            blob: object = None
            if kind == EXTENT:
                extent = decode_extent(value)
                ranges.add((extent.offset, extent.offset + extent.run))
            elif kind == INODE:
                blob = decode_inode(value).target
            elif kind == XATTR:
                blob = decode_xattr(value)
            if isinstance(blob, Blob):
                ranges.add((blob.offset, blob.offset + blob.length))
    merged: Ranges = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


# -- reading -------------------------------------------------------------------------------------


def view_of(store: Store, record: Record) -> tuple[View, set[bytes]]:
    """What can be read of a commit, and paths of what cannot: of a directory some of its names."""
    snapshot = Snapshot(store, record)
    view: View = {}
    unreadable: set[bytes] = set()
    waiting = [(b"", ROOT_INO)]
    while waiting:
        base, directory = waiting.pop()
        try:
            snapshot.inode(directory)
            for _, dentry in snapshot.cookies(directory):
                path = base + b"/" + dentry.name if base else dentry.name
                try:
                    view[path] = entry_of(snapshot, dentry.ino)
                except CorruptError:
                    unreadable.add(path)
                else:
                    if dentry.kind == stat.S_IFDIR >> 12:
                        waiting.append((path, dentry.ino))
        except CorruptError:
            unreadable.add(base)
    return view, unreadable


def entry_of(snapshot: Snapshot, ino: int) -> tuple[object, ...]:
    inode = snapshot.inode(ino)
    data = b""
    if stat.S_ISREG(inode.mode):
        data = snapshot.read(ino, 0, inode.size)
    elif stat.S_ISLNK(inode.mode):
        data = snapshot.readlink(ino)
    xattrs = tuple(sorted(snapshot.xattrs(ino).items()))
    return (inode.mode, inode.nlink, inode.uid, inode.gid, inode.size, inode.mtime_ns, data, xattrs)


def below(path: bytes, named: set[bytes]) -> bool:
    """Whether a path is one of those, or lies below one; b"" is above all."""
    return b"" in named or any(path == other or path.startswith(other + b"/") for other in named)


def used_bytes(made: Original) -> Iterator[tuple[int, int]]:
    """Ranges of the file that mean something: slots, records, and what commits consist of."""
    yield from ((0, 512), (4096, 4608))
    everything: set[tuple[int, int]] = set()
    for used in made.used.values():
        everything.update(used)
    yield from sorted(everything)
