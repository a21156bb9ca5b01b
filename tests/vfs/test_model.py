"""The vfs against a model of dictionaries: live contents after every step, and every commit (P1 to P5)."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitfs.errors import FsError
from commitfs.native import crc32c
from commitfs.vfs.api import SetAttr
from commitfs.vfs.namespace import RENAME_EXCHANGE, RENAME_NOREPLACE
from commitfs.vfs.vfs import Vfs
from tests.support.model_fs import Entry, Model, Open, Thing, View
from tests.support.world import CTX, commit_root, lookup, open_vfs, tree_view

NAMES = st.sampled_from([b"a", b"b", b"c", b"\xff\n"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
DATA = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.tuples(st.binary(min_size=1, max_size=4), st.integers(1000, 90_000)).map(lambda t: t[0] * t[1]),
)
SMALL = st.integers(0, 3)
OFFSETS = st.one_of(st.integers(0, 60), st.integers(60_000, 140_000))

STEPS = st.one_of(
    st.tuples(st.just("create"), PATHS),
    st.tuples(st.just("open"), PATHS, st.booleans(), st.booleans()),
    st.tuples(st.just("write"), SMALL, OFFSETS, DATA),
    st.tuples(st.just("write"), SMALL, OFFSETS, DATA),
    st.tuples(st.just("close"), SMALL),
    st.tuples(st.just("flush"), SMALL),
    st.tuples(st.just("fsync"), SMALL),
    st.tuples(st.just("ftruncate"), SMALL, OFFSETS),
    st.tuples(st.just("truncate"), PATHS, OFFSETS),
    st.tuples(st.just("save"), PATHS, DATA),
    st.tuples(st.just("save"), PATHS, DATA),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(
        st.just("symlink"), PATHS, st.binary(min_size=1, max_size=900).filter(lambda b: b"\0" not in b)
    ),
    st.tuples(st.just("unlink"), PATHS),
    st.tuples(st.just("rmdir"), PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS, st.sampled_from([0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE])),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("chmod"), PATHS, st.integers(0, 0o7777)),
    st.tuples(st.just("setxattr"), PATHS, NAMES, st.binary(max_size=2000)),
    st.tuples(st.just("removexattr"), PATHS, NAMES),
    st.just(("settle",)),
    st.just(("remount",)),
)


def short(entry: Entry | None) -> object:
    """An entry that can be read in a message: long contents by length and checksum."""
    if entry is None or len(entry[2]) < 100:
        return entry
    return (*entry[:2], f"{len(entry[2])} bytes, {crc32c(entry[2]):08x}", *entry[3:])


def compare(seen: View, right: View, where: str) -> None:
    """All differences at once, so that a failure says what happened."""
    if seen != right:
        paths = sorted(path for path in seen.keys() | right.keys() if seen.get(path) != right.get(path))
        lines = [f"{path!r}: {short(seen.get(path))}, not {short(right.get(path))}" for path in paths]
        raise AssertionError(f"{where}: " + "; ".join(lines))


class Machine:
    """Does each step to the vfs and to the model; the model says beforehand which errors are right."""

    def __init__(self, vfs: Vfs, model: Model) -> None:
        self.vfs = vfs
        self.model = model
        self.handles: list[tuple[int, Open]] = []

    def find(self, path: tuple[bytes, ...]) -> Thing | None:
        thing: Thing | None = self.model.root
        for name in path:
            if thing is None or thing.kind != "dir":
                return None
            thing = thing.names.get(name)
        return thing

    def parent(self, path: tuple[bytes, ...]) -> Thing | None:
        thing = self.find(path[:-1])
        return thing if thing is not None and thing.kind == "dir" else None

    async def ino(self, path: tuple[bytes, ...]) -> int:
        return await lookup(self.vfs, b"/".join(path))

    def attach(self, fh: int, handle: Open) -> None:
        if handle.writable:
            handle.thing.writers += 1
        self.handles.append((fh, handle))

    async def create(self, path: tuple[bytes, ...]) -> None:
        parent = self.parent(path)
        if parent is None:
            return
        ino = await self.ino(path[:-1])
        if path[-1] in parent.names:
            with pytest.raises(FsError, match="exists"):
                await self.vfs.create(ino, path[-1], 0o644, os.O_RDWR, CTX)
            return
        opened, _ = await self.vfs.create(ino, path[-1], stat.S_IFREG | 0o644, os.O_RDWR, CTX)
        thing = Thing("file", 0o644, pending=True)
        self.model.add(parent, path[-1], thing)
        self.attach(opened.fh, Open(thing, True, owes=thing.commits))

    async def open(self, path: tuple[bytes, ...], writable: bool, truncate: bool) -> None:
        thing = self.find(path)
        if thing is None or thing.kind != "file":
            return
        truncate = truncate and writable
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_TRUNC if truncate else 0)
        opened = await self.vfs.open(await self.ino(path), flags, CTX)
        if truncate:
            self.model.truncate(thing, 0)
        self.attach(opened.fh, Open(thing, writable, owes=thing.commits if truncate else -1))

    def pick(self, index: int, *, writable: bool = False) -> tuple[int, Open] | None:
        found = [pair for pair in self.handles if pair[1].writable or not writable]
        return found[index % len(found)] if found else None

    async def write(self, index: int, offset: int, data: bytes) -> None:
        if picked := self.pick(index, writable=True):
            assert await self.vfs.write(picked[0], offset, data) == len(data)
            self.model.write(picked[1], offset, data)

    async def close(self, index: int) -> None:
        if picked := self.pick(index):
            self.handles.remove(picked)
            await self.vfs.flush(picked[0])
            self.model.flush(picked[1])
            await self.vfs.release(picked[0])
            self.model.release(picked[1])

    async def flush(self, index: int) -> None:
        if picked := self.pick(index):
            await self.vfs.flush(picked[0])
            self.model.flush(picked[1])

    async def fsync(self, index: int) -> None:
        if picked := self.pick(index):
            await self.vfs.fsync(picked[0], False)
            self.model.fsync(picked[1])

    async def ftruncate(self, index: int, size: int) -> None:
        if picked := self.pick(index, writable=True):
            ino = self.vfs.files.handles[picked[0]].node.ino
            await self.vfs.setattr(ino, SetAttr(size=size), picked[0], CTX)
            self.model.truncate(picked[1].thing, size)
            picked[1].owes = picked[1].thing.commits

    async def truncate(self, path: tuple[bytes, ...], size: int) -> None:
        thing = self.find(path)
        if thing is None or thing.kind != "file":
            return
        await self.vfs.setattr(await self.ino(path), SetAttr(size=size), None, CTX)
        self.model.truncate(thing, size)
        if not thing.writers:
            self.model.commit(thing)

    async def save(self, path: tuple[bytes, ...], data: bytes) -> None:
        """What a program does: open with O_TRUNC or create, write, close.  Exactly one commit."""
        before = len(self.model.commits)
        count = len(self.handles)
        if self.find(path) is None:
            await self.create(path)
        else:
            await self.open(path, True, True)
        if len(self.handles) == count:
            return
        fh, handle = self.handles.pop()
        await self.vfs.write(fh, 0, data)
        self.model.write(handle, 0, data)
        await self.vfs.flush(fh)
        self.model.flush(handle)
        await self.vfs.release(fh)
        self.model.release(handle)
        assert len(self.model.commits) == before + 1

    async def mkdir(self, path: tuple[bytes, ...]) -> None:
        await self._make(path, Thing("dir", 0o755), lambda ino: self.vfs.mkdir(ino, path[-1], 0o755, CTX))

    async def symlink(self, path: tuple[bytes, ...], target: bytes) -> None:
        await self._make(
            path, Thing("symlink", 0o777, target), lambda ino: self.vfs.symlink(ino, path[-1], target, CTX)
        )

    async def _make(self, path: tuple[bytes, ...], thing: Thing, act: Callable[[int], Any]) -> None:
        parent = self.parent(path)
        if parent is None:
            return
        ino = await self.ino(path[:-1])
        if path[-1] in parent.names:
            with pytest.raises(FsError, match="exists"):
                await act(ino)
            return
        await act(ino)
        if thing.kind == "dir":
            thing.mode |= parent.mode & stat.S_ISGID  # set-gid directories hand it on
        self.model.add(parent, path[-1], thing)
        self.model.staged = True

    async def unlink(self, path: tuple[bytes, ...]) -> None:
        parent = self.parent(path)
        if parent is None or path[-1] not in parent.names or parent.names[path[-1]].kind == "dir":
            return
        await self.vfs.unlink(await self.ino(path[:-1]), path[-1], CTX)
        self.model.remove(parent, path[-1])

    async def rmdir(self, path: tuple[bytes, ...]) -> None:
        parent = self.parent(path)
        thing = self.find(path)
        if parent is None or thing is None or thing.kind != "dir":
            return
        ino = await self.ino(path[:-1])
        if thing.names:
            with pytest.raises(FsError, match="not empty"):
                await self.vfs.rmdir(ino, path[-1], CTX)
            return
        await self.vfs.rmdir(ino, path[-1], CTX)
        self.model.remove(parent, path[-1])

    async def rename(self, path: tuple[bytes, ...], to: tuple[bytes, ...], flags: int) -> None:
        parent, to_parent = self.parent(path), self.parent(to)
        if parent is None or to_parent is None:
            return
        ino, to_ino = await self.ino(path[:-1]), await self.ino(to[:-1])
        thing, target = parent.names.get(path[-1]), to_parent.names.get(to[-1])
        wrong = (
            thing is None
            or (flags == RENAME_NOREPLACE and target is not None)
            or (flags == RENAME_EXCHANGE and target is None)
            or (thing.kind == "dir" and len(to) > len(path) and to[: len(path)] == path)
            or (flags == RENAME_EXCHANGE and len(path) > len(to) and path[: len(to)] == to)
        )
        if not wrong and target is not None and target is not thing and flags == 0:
            assert thing is not None
            wrong = (target.kind == "dir") != (thing.kind == "dir") or bool(target.names)
        if wrong:
            with pytest.raises(FsError):
                await self.vfs.rename(ino, path[-1], to_ino, to[-1], flags, CTX)
            return
        await self.vfs.rename(ino, path[-1], to_ino, to[-1], flags, CTX)
        if flags == RENAME_EXCHANGE:
            self.model.exchange(parent, path[-1], to_parent, to[-1])
        else:
            self.model.rename(parent, path[-1], to_parent, to[-1])

    async def link(self, path: tuple[bytes, ...], to: tuple[bytes, ...]) -> None:
        thing, parent = self.find(path), self.parent(to)
        if thing is None or parent is None or thing.kind == "dir" or to[-1] in parent.names:
            return
        await self.vfs.link(await self.ino(path), await self.ino(to[:-1]), to[-1], CTX)
        self.model.link(thing, parent, to[-1])

    async def chmod(self, path: tuple[bytes, ...], mode: int) -> None:
        thing = self.find(path)
        if thing is None or thing.kind == "symlink":
            return
        await self.vfs.setattr(await self.ino(path), SetAttr(mode=mode), None, CTX)
        thing.mode = mode
        self._attribute(thing)

    async def setxattr(self, path: tuple[bytes, ...], name: bytes, value: bytes) -> None:
        thing = self.find(path)
        if thing is None:
            return
        await self.vfs.setxattr(await self.ino(path), b"user." + name, value, CTX)
        thing.xattrs[b"user." + name] = value
        self._attribute(thing)

    async def removexattr(self, path: tuple[bytes, ...], name: bytes) -> None:
        thing = self.find(path)
        if thing is None:
            return
        ino = await self.ino(path)
        if b"user." + name not in thing.xattrs:
            with pytest.raises(FsError):
                await self.vfs.removexattr(ino, b"user." + name, CTX)
            return
        await self.vfs.removexattr(ino, b"user." + name, CTX)
        del thing.xattrs[b"user." + name]
        self._attribute(thing)

    def _attribute(self, thing: Thing) -> None:
        if thing.kind != "file" or thing.committed is not None:
            self.model.staged = True

    async def settle(self) -> None:
        await self.vfs.settle()
        self.model.settle()

    async def check(self) -> None:
        head = self.vfs.store.head
        assert head is not None
        assert int(head.id) == len(self.model.commits)
        compare(await tree_view(self.vfs), self.model.view(committed=False), "live")

    async def check_commit(self, commit: int) -> None:
        compare(
            await tree_view(self.vfs, commit_root(commit)), self.model.commits[commit - 1], f"commit {commit}"
        )


async def run_steps(folder: Path, steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    todo = list(reversed(steps))
    while True:
        async with open_vfs(folder / "store.db") as vfs:
            machine = Machine(vfs, model)
            checked = len(model.commits)
            await machine.check()
            while todo and todo[-1] != "remount":
                name, *arguments = todo.pop() if isinstance(todo[-1], tuple) else (todo.pop(),)
                if name == "remount":
                    break
                await getattr(machine, name)(*arguments)
                await machine.check()
                while checked < len(model.commits):
                    checked += 1
                    await machine.check_commit(checked)
            while machine.handles:
                await machine.close(0)
            await machine.settle()
            await machine.check()
            for commit in range(1, len(model.commits) + 1):
                await machine.check_commit(commit)
        if not todo:
            return


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=40))
def test_vfs_does_what_the_model_does(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(run_steps, Path(folder), steps)
