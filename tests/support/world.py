"""A vfs on a real store in a folder, without a mount; and its trees as dictionaries."""

import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from commitfs.errors import FsError
from commitfs.format.keys import ROOT_INO
from commitfs.store.committer import GroupCommitter
from commitfs.store.file import StoreFile, open_file
from commitfs.store.stage import Stager
from commitfs.store.store import Store
from commitfs.vfs.api import Ctx
from commitfs.vfs.create import create_store
from commitfs.vfs.history import SHIFT
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs
from tests.support.model_fs import Entry, View

CTX = Ctx(uid=0, gid=0, pid=1)
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}


@asynccontextmanager
async def open_vfs(
    path: Path,
    *,
    settle: float = 1000.0,
    clean: bool = True,
    opener: Callable[[str, bool], StoreFile] = open_file,
    inline: bool | None = None,
) -> AsyncIterator[Vfs]:
    """A Vfs that serves a writable store; the store is made if there is none.  With `clean` it is
    closed as at unmount, else left as a killed daemon leaves it.  `opener` may open another file
    than the one at `path`, which then is asked only how full its disk is.  `inline` is the
    committer's."""
    if not path.exists():
        create_store(path, uid=0, gid=0)
    store = Store.open(path, writable=True, opener=opener)
    try:
        committer = GroupCommitter(store, inline=inline)
        stager = Stager(store, committer)
        async with trio.open_nursery() as nursery:
            await nursery.start(committer.run)
            vfs = Vfs(store, committer, stager, settle=settle)
            await nursery.start(vfs.run)
            yield vfs
            if clean:
                await vfs.close()
            stager.close()
            nursery.cancel_scope.cancel()
    finally:
        store.close()


async def lookup(vfs: Vfs, path: bytes) -> int:
    """Inode of a path, looking every name up as the kernel does."""
    ino = ROOT_INO
    for name in filter(None, path.split(b"/")):
        attr = await vfs.lookup(ino, name, CTX)
        if attr.ino == 0:
            raise FileNotFoundError(path)
        ino = attr.ino
    return ino


def newest(vfs: Vfs) -> int:
    """Id of the newest commit, durable or not."""
    assert vfs.store.head is not None
    return int(vfs.store.head.id)


async def new(vfs: Vfs, name: bytes, flags: int = os.O_RDWR, *, parent: int = ROOT_INO) -> tuple[int, int]:
    """(handle, inode) of a file made and open."""
    opened, attr = await vfs.create(parent, name, stat.S_IFREG | 0o644, flags, CTX)
    return opened.fh, attr.ino


async def save(vfs: Vfs, name: bytes, data: bytes, *, parent: int = ROOT_INO) -> int:
    """Inode of a file made, written and closed."""
    fh, ino = await new(vfs, name, parent=parent)
    await vfs.write(fh, 0, data)
    await close(vfs, fh)
    return ino


async def close(vfs: Vfs, fh: int) -> None:
    await vfs.flush(fh)
    await vfs.release(fh)


def committed(vfs: Vfs, path: bytes, commit: int | None = None) -> bytes | None:
    """Contents in a commit (the newest), None if it is not there."""
    record = vfs.store.head if commit is None else vfs.store.record(commit)
    snapshot = Snapshot(vfs.store, record)
    try:
        ino = snapshot.resolve(path)
    except FsError:
        return None
    return snapshot.read(ino, 0, 1 << 30)


async def names(vfs: Vfs, ino: int) -> list[tuple[bytes, int]]:
    """(name, inode) of a directory, by as many readdir calls as it takes; without dots."""
    fh = await vfs.opendir(ino, CTX)
    found: list[tuple[bytes, int]] = []
    cookie = 0
    while batch := await vfs.readdir(fh, cookie):
        for name, attr, after in batch:
            assert after > cookie
            cookie = after
            if name not in (b".", b".."):
                found.append((name, attr.ino))
    await vfs.releasedir(fh)
    return found


async def contents(vfs: Vfs, ino: int, size: int) -> bytes:
    opened = await vfs.open(ino, os.O_RDONLY, CTX)
    parts = []
    at = 0
    while at < size:
        data = await vfs.read(opened.fh, at, min(131072, size - at))
        assert data
        parts.append(data)
        at += len(data)
    assert await vfs.read(opened.fh, size, 1) == b""
    await vfs.flush(opened.fh)
    await vfs.release(opened.fh)
    return b"".join(parts)


async def save_again(vfs: Vfs, parent: int, name: bytes, data: bytes) -> None:
    """Write a file that may be there already, as a program does: open or create, write, close."""
    found = await vfs.lookup(parent, name, CTX)
    if found.ino:
        opened = await vfs.open(found.ino, os.O_WRONLY | os.O_TRUNC, CTX)
    else:
        opened, _ = await vfs.create(parent, name, 0o644, os.O_WRONLY, CTX)
    for at in range(0, len(data), 1 << 17):
        await vfs.write(opened.fh, at, data[at : at + (1 << 17)])
    await vfs.flush(opened.fh)
    await vfs.release(opened.fh)


async def tree_view(vfs: Vfs, root: int = ROOT_INO) -> View:
    """Everything below a directory of the mount, as the model's `view` gives it."""
    found: View = {}

    async def visit(path: bytes, ino: int) -> None:
        for name, child in await names(vfs, ino):
            full = path + b"/" + name if path else name
            attr = await vfs.getattr(child, CTX)
            kind = _KINDS[stat.S_IFMT(attr.mode)]
            data = b""
            if kind == "file":
                data = await contents(vfs, child, attr.size)
            elif kind == "symlink":
                data = await vfs.readlink(child)
                assert attr.size == len(data)
            xattrs = []
            for xattr in sorted(await vfs.listxattr(child, CTX)):
                xattrs.append((xattr, await vfs.getxattr(child, xattr, CTX)))
            entry: Entry = (kind, stat.S_IMODE(attr.mode), data, tuple(xattrs), attr.nlink)
            found[full] = entry
            if kind == "dir":
                await visit(full, child)

    await visit(b"", root)
    return found


def commit_root(commit: int) -> int:
    return commit << SHIFT | ROOT_INO
