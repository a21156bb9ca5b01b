"""Open files of the live tree: reading, writing, and the commit points a handle brings about (P1, P2)."""

import errno
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

import trio

from commitfs.errors import FsError, ReadOnlyError
from commitfs.format.keys import xattr_key
from commitfs.store.store import Store
from commitfs.vfs import namespace
from commitfs.vfs.api import Ctx, Opened
from commitfs.vfs.commits import NOBODY, Commits, Who
from commitfs.vfs.content import Pending, read_tree
from commitfs.vfs.live import Live, Node

RELEASE_WAIT = 0.1
"""Seconds an observer of history waits for the RELEASE of a handle flushed with something pending."""
PROGRAM_VALID = 1.0
PROGRAMS = 256
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
SYNC_FLAGS = os.O_SYNC | os.O_DSYNC
PRIVILEGES = stat.S_ISUID | stat.S_ISGID
CAPABILITY = b"security.capability"


class Handle:
    """One open file description."""

    __slots__ = ("dirty", "flushed", "node", "owes", "privileged", "sync", "who", "writable")

    def __init__(self, node: Node, flags: int, who: Who) -> None:
        self.node = node
        self.writable = bool(flags & WRITE_FLAGS)
        self.sync = bool(flags & SYNC_FLAGS)
        self.who = who
        self.privileged = who.uid == 0
        self.dirty = False
        """Bytes were written through it since its last commit point."""
        self.owes: Pending | None = None
        """Pending contents it had a part in, by bytes or by making or truncating the file: if they are
        still pending at its RELEASE, that is a commit point.  FLUSH looks at bytes alone, since shells
        open, dup and close before they write.  RELEASE comes late: by then the next program may
        have truncated the file, and that is other pending contents, none of this handle's."""
        self.flushed = 0.0


def unprivileged_mode(mode: int) -> int:
    """The mode after a write by someone without privilege: set-uid goes, set-gid where it means one."""
    mode &= ~stat.S_ISUID
    return mode & ~stat.S_ISGID if mode & stat.S_IXGRP else mode


class Files:
    def __init__(self, live: Live, store: Store, commits: Commits | None) -> None:
        self.live = live
        self.store = store
        self._commits = commits
        self.invalidate: Callable[[int], None] = lambda ino: None
        self.handles: dict[int, Handle] = {}
        self._unreleased: set[Handle] = set()
        self._releasing = 0
        self._released: trio.Event | None = None
        self._programs: OrderedDict[int, tuple[float, bytes]] = OrderedDict()

    @property
    def commits(self) -> Commits:
        if self._commits is None:
            raise FsError(errno.EROFS)
        return self._commits

    def program(self, pid: int) -> bytes:
        """Name of a process, kept for a second: a shell opens many files in that time."""
        now = time.monotonic()
        known = self._programs.get(pid)
        if known is not None and now - known[0] < PROGRAM_VALID:
            return known[1]
        try:
            with open(f"/proc/{pid}/comm", "rb", buffering=0) as comm:
                name = cast(bytes, comm.read(64)).rstrip(b"\n")
        except OSError:
            name = b""
        self._programs[pid] = (now, name)
        if len(self._programs) > PROGRAMS:
            self._programs.popitem(last=False)
        return name

    def who(self, ctx: Ctx) -> Who:
        return Who(ctx.uid, ctx.pid, self.program(ctx.pid))

    # Opening

    def _open(self, fh: int, node: Node, flags: int, ctx: Ctx) -> tuple[Handle, Opened]:
        writable = bool(flags & WRITE_FLAGS)
        handle = Handle(node, flags, self.who(ctx) if writable else NOBODY)
        self.handles[fh] = handle
        node.handles += 1
        if writable:
            node.writers += 1
        self.live.pin(node)
        # direct_io saves the kernel a GETXATTR before every write.  And it hands a write over in one piece
        # (below 1 MiB), where the page cache splits it at the first page it has not got: an O_SYNC write
        # would be two commits, the first of them of half of it.
        direct = flags & os.O_ACCMODE == os.O_WRONLY
        return handle, Opened(fh, direct, not direct)

    async def open(self, fh: int, ino: int, flags: int, ctx: Ctx) -> Opened:
        live = self.live
        node = live.node(ino)
        if node.is_dir:
            raise FsError(errno.EISDIR)
        if not flags & (WRITE_FLAGS | os.O_TRUNC):
            _, opened = self._open(fh, node, flags, ctx)
            return opened if self.store.writable else opened._replace(keep_cache=False)
        live.check_writable()
        commits = self.commits
        if not flags & os.O_TRUNC:
            return self._open(fh, node, flags, ctx)[1]
        if node.spilling:
            await commits.spilled(node)
        pending = self.truncate(node, 0, live.now())
        handle, opened = self._open(fh, node, flags, ctx)
        handle.owes = pending
        if not handle.privileged:
            self._drop_privileges(node)
        return opened

    def create(
        self, fh: int, parent: int, name: bytes, mode: int, flags: int, ctx: Ctx
    ) -> tuple[Opened, Node]:
        commits = self.commits
        commits.reserve(0)
        node = namespace.create(self.live, parent, name, mode, ctx)
        handle, opened = self._open(fh, node, flags, ctx)
        handle.owes = commits.start(node)
        if not handle.writable:
            handle.who = self.who(ctx)
        return opened, node

    # Contents

    def truncate(self, node: Node, size: int, now: int) -> Pending:
        """Pending until a commit point.  Raises OSError ENOSPC."""
        commits = self.commits
        commits.reserve(0)
        pending = commits.start(node)
        if size < node.attr.size:
            pending.truncate(size)
            commits.account(node)
        node.attr = node.attr.sized(size, now)
        return pending

    def read(self, handle: Handle, offset: int, size: int) -> bytes:
        node = handle.node
        end = min(offset + size, node.attr.size)
        if end <= offset:
            return b""
        pending = node.pending
        if pending is None:
            return bytes(read_tree(self.live.tree, self.store, node.ino, offset, end))
        into = bytearray(end - offset)
        base = min(end, pending.base_limit)
        if offset < base and node.saved is not None:
            read_tree(self.live.tree, self.store, node.ino, offset, base, into, offset)
        pending.overlay(self.store, into, offset, end)
        return bytes(into)

    async def write(self, handle: Handle, offset: int, data: bytes) -> int:
        commits = self.commits
        node = handle.node
        live = self.live
        live.check_writable()
        length = len(data)
        # Room is made before anything is accepted: what a failed write took nobody would know of.
        while node.spilling or (node.pending is not None and commits.full(node.pending, length)):
            await (commits.spilled(node) if node.spilling else commits.spill(node))
            live.check_writable()
        commits.reserve(length)
        pending = commits.start(node)
        pending.write(offset, data)
        commits.account(node)
        now = live.now()
        attr = node.attr
        node.attr = attr.sized(max(attr.size, offset + length), now)
        if not handle.dirty:
            self._drop_capability(node)
        handle.dirty = True
        handle.owes = pending
        if not handle.privileged and attr.mode & PRIVILEGES:
            self._drop_privileges(node)
        if handle.sync:
            try:
                await self._commit(handle)
            except BaseException:
                self.invalidate(node.ino)  # the bytes are there, though not durable
                raise
        return length

    def _drop_privileges(self, node: Node) -> None:
        mode = unprivileged_mode(node.attr.mode)
        if mode != node.attr.mode:
            node.attr = node.attr._replace(mode=mode)
            self.invalidate(node.ino)

    def _drop_capability(self, node: Node) -> None:
        """A file whose contents change must not keep the privileges given to the old ones.  The kernel
        sees to that, but not for handles that pass its cache by."""
        live = self.live
        if live.xattr(node, CAPABILITY) is None:
            return
        if node.xattrs is not None:
            del node.xattrs[CAPABILITY]
            return
        key = xattr_key(node.ino, CAPABILITY)
        with live.changing(key):
            live.tree.delete(key)

    # Commit points

    async def _commit(self, handle: Handle) -> None:
        """A commit point of the handle's file, if it still has a name.

        Where its bytes went with somebody else's commit and what is pending now is not its own, it
        makes its commit (P1) without those contents (P2).
        """
        node = handle.node
        handle.dirty = False
        if node.dead:
            return
        own = node.pending is None or handle.owes is node.pending
        try:
            await self.commits.point([node] if own else [], handle.who)
        except ReadOnlyError as exc:
            handle.dirty = True
            raise FsError(errno.EIO, str(exc)) from exc
        except BaseException:
            handle.dirty = True
            raise

    async def flush(self, handle: Handle) -> None:
        owes = handle.owes
        if owes is not None and owes.at_name_change and owes is not handle.node.pending:
            handle.dirty = False
        if handle.dirty:
            await self._commit(handle)
        elif handle.owes is not None and handle.owes is handle.node.pending:
            handle.flushed = trio.current_time()
            self._unreleased.add(handle)

    async def fsync(self, handle: Handle) -> None:
        if self._commits is None:
            return
        if handle.node.pending is not None and not handle.node.dead:
            handle.owes = handle.node.pending  # fsync means all of the file
            await self._commit(handle)
        else:
            handle.dirty = False
            await self._commits.settle()

    async def release(self, fh: int, handle: Handle) -> None:
        del self.handles[fh]
        node = handle.node
        node.handles -= 1
        if handle.writable:
            node.writers -= 1
        commits = self._commits
        self._releasing += 1
        try:
            if node.pending is not None and commits is not None:
                last = handle.writable and not node.writers
                if not node.dead and (handle.owes is node.pending or last):
                    await commits.point([node], handle.who)
        finally:
            self._releasing -= 1
            self._unreleased.discard(handle)
            self.live.unpin(node)
            if self._released is not None:
                self._released.set()
                self._released = None

    async def releases(self) -> None:
        """Wait for the RELEASEs under way, and shortly for those that are about to come (P4)."""
        late = trio.current_time() - RELEASE_WAIT
        with trio.move_on_after(RELEASE_WAIT):
            while any(handle.flushed > late for handle in self._unreleased):
                await self._one_release()
        while self._releasing:
            await self._one_release()

    async def _one_release(self) -> None:
        if self._released is None:
            self._released = trio.Event()
        await self._released.wait()
