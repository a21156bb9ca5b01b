"""The vfs: every call the kernel makes, on the live tree and on history (P1 to P5).

Asynchronous where something has to become durable, synchronous in between: between two awaits a handler
sees and leaves a whole state.  Handlers do their work, or register it, before their first await.
docs/concurrency.md lists the awaits that matter.
"""

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import trio

from commitfs.errors import CommitfsError, FsError, StoreError
from commitfs.format.inode import NAME_MAX
from commitfs.format.keys import ROOT_INO
from commitfs.store.committer import GroupCommitter
from commitfs.store.stage import Stager
from commitfs.store.store import Store
from commitfs.vfs import namespace
from commitfs.vfs.api import LIVE_VALID, MISSING, Attr, Ctx, Opened, SetAttr, StatFs
from commitfs.vfs.attributes import Attributes
from commitfs.vfs.commits import NOBODY, Commits
from commitfs.vfs.files import WRITE_FLAGS, Files, Handle
from commitfs.vfs.history import COMMITS_INO, SHIFT, History
from commitfs.vfs.live import HIDDEN, Live, Node
from commitfs.vfs.snapshot import stat_of
from commitfs.vfs.usage import disk_below

BATCH = 256
COMMITS = b".commits"
DOTS = 2
"""Cookies of "." and ".." are 1 and 2."""


log = logging.getLogger(__name__)


def is_past(ino: int) -> bool:
    return ino >> SHIFT != 0 or ino == COMMITS_INO


class Vfs:
    def __init__(
        self,
        store: Store,
        committer: GroupCommitter | None,
        stager: Stager | None,
        *,
        settle: float = 1.0,
        history_visible: bool = False,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.store = store
        self.live = Live(store, now)
        self.commits: Commits | None = None
        if committer is not None and stager is not None:
            self.commits = Commits(self.live, store, committer, stager, settle)
        self.files = Files(self.live, store, self.commits)
        self.attributes = Attributes(self.live, self.files)
        self.history = History(store)
        self.history_visible = history_visible
        self._others: dict[int, int] = {}
        """Inodes of handles that keep nothing: directories, and files in history."""
        self._next_fh = 1

    @property
    def invalidate(self) -> Callable[[int], None]:
        """Called with the inode whose attributes the kernel has to forget."""
        return self.files.invalidate

    @invalidate.setter
    def invalidate(self, hook: Callable[[int], None]) -> None:
        self.files.invalidate = hook

    # Helpers

    def _writing(self, *inodes: int) -> Commits:
        """Refuse a change of history, or of a store that takes none."""
        for ino in inodes:
            if is_past(ino):
                raise FsError(errno.EROFS)
        self.live.check_writable()
        return self.files.commits

    def _growing(self, *inodes: int) -> Commits:
        """The same for a change that takes room: ENOSPC comes now rather than at its commit."""
        commits = self._writing(*inodes)
        commits.reserve(0)
        return commits

    def _stat(self, node: Node) -> Attr:
        attr = node.attr
        if node.pending is not None:
            base = node.saved.stored if node.saved is not None and node.pending.base_limit else 0
            stored = max(base, node.pending.stored())
            if stored != attr.stored:
                attr = attr._replace(stored=stored)
        valid = LIVE_VALID if self.store.writable else 0.0
        return stat_of(node.ino, attr, valid, valid)

    def _follow(self) -> None:
        """A read-only mount follows the newest commit of the store (P8)."""
        if not self.store.writable and self.store.refresh():
            self.live.follow()
            self.history.follow()

    def _new_fh(self, ino: int = 0) -> int:
        fh = self._next_fh
        self._next_fh += 1
        if ino:
            self._others[fh] = ino
        return fh

    def _handle(self, fh: int) -> Handle:
        handle = self.files.handles.get(fh)
        if handle is None:
            raise FsError(errno.EBADF)
        return handle

    # Names

    async def lookup(self, parent: int, name: bytes, ctx: Ctx) -> Attr:
        if is_past(parent):
            if name == b".":
                return self.history.getattr(parent)
            if name == b"..":
                return await self.getattr(self.history.parent(parent), ctx)
            if parent == COMMITS_INO:
                await self._observe()
            return self.history.lookup(parent, name)
        if parent == ROOT_INO and name == COMMITS:
            return self.history.commits_attr()
        live = self.live
        self._follow()
        if name == b".":
            ino = parent
        elif name == b"..":
            ino = live.directory(parent).attr.parent or ROOT_INO
        else:
            if len(name) > NAME_MAX:
                raise FsError(errno.ENAMETOOLONG)
            found = live.find(parent, name)
            if found is None:
                if not self.store.writable or (parent == ROOT_INO and name in HIDDEN):
                    raise FsError(errno.ENOENT)
                return MISSING
            ino = found[0]
        attr = self._stat(live.node(ino))
        live.looked_up(ino)
        return attr

    def forget(self, pairs: Sequence[tuple[int, int]]) -> None:
        for ino, count in pairs:
            if not is_past(ino):
                self.live.forget(ino, count)

    async def getattr(self, ino: int, ctx: Ctx) -> Attr:
        if is_past(ino):
            return self.history.getattr(ino)
        self._follow()
        return self._stat(self.live.node(ino))

    async def readlink(self, ino: int) -> bytes:
        if ino >> SHIFT:
            return self.history.readlink(ino)
        return self.live.readlink(self.live.node(ino))

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, ctx: Ctx) -> Attr:
        return await self._make(parent, name, mode, ctx, rdev=rdev)

    async def mkdir(self, parent: int, name: bytes, mode: int, ctx: Ctx) -> Attr:
        return await self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), ctx)

    async def symlink(self, parent: int, name: bytes, target: bytes, ctx: Ctx) -> Attr:
        return await self._make(parent, name, stat.S_IFLNK | 0o777, ctx, target=target)

    async def _make(
        self, parent: int, name: bytes, mode: int, ctx: Ctx, *, rdev: int = 0, target: bytes = b""
    ) -> Attr:
        commits = self._growing(parent)
        node = namespace.make(self.live, parent, name, mode, ctx, rdev=rdev, target=target)
        attr = self._stat(node)
        self.live.looked_up(node.ino)
        await commits.staged(self.files.who(ctx))
        return attr

    async def link(self, ino: int, parent: int, name: bytes, ctx: Ctx) -> Attr:
        commits = self._growing(ino, parent)
        node = self.live.node(ino)
        if node.pending is not None and not node.dead:
            await commits.point(
                [node], self.files.who(ctx), lambda: namespace.link(self.live, ino, parent, name)
            )
        else:
            namespace.link(self.live, ino, parent, name)
            await commits.staged(self.files.who(ctx))
        self.live.looked_up(ino)
        return self._stat(node)

    async def unlink(self, parent: int, name: bytes, ctx: Ctx) -> None:
        commits = self._writing(parent)
        namespace.unlink(self.live, parent, name)
        if self.live.staged:
            await commits.staged(self.files.who(ctx))

    async def rmdir(self, parent: int, name: bytes, ctx: Ctx) -> None:
        commits = self._writing(parent)
        namespace.rmdir(self.live, parent, name)
        await commits.staged(self.files.who(ctx))

    async def rename(
        self, parent: int, name: bytes, to_parent: int, to_name: bytes, flags: int, ctx: Ctx
    ) -> None:
        commits = self._growing(parent, to_parent)
        found = self.live.find(parent, name)
        node = self.live.node(found[0]) if found else None
        if not flags and found and (there := self.live.find(to_parent, to_name)) and there[0] == found[0]:
            return  # two names of one file: nothing to do, and no commit point
        moved = [node] if node is not None and node.pending is not None else []
        if flags & namespace.RENAME_EXCHANGE and (there := self.live.find(to_parent, to_name)):
            other = self.live.node(there[0])
            if other.pending is not None and other is not node:
                moved.append(other)

        def change() -> None:
            namespace.rename(self.live, parent, name, to_parent, to_name, flags)

        if moved:
            await commits.point(moved, self.files.who(ctx), change)
        else:
            change()
            await commits.staged(self.files.who(ctx))

    # Attributes

    async def setattr(self, ino: int, wanted: SetAttr, fh: int | None, ctx: Ctx) -> Attr:
        self._writing(ino)
        node = self.live.node(ino)
        await self.attributes.set(node, wanted, self.files.handles.get(fh or 0), ctx)
        return self._stat(node)

    async def getxattr(self, ino: int, name: bytes, ctx: Ctx) -> bytes:
        past = is_past(ino)
        value = self.history.xattrs(ino).get(name) if past else self.attributes.xattr(ino, name)
        if value is None:
            raise FsError(errno.ENODATA)
        return value

    async def listxattr(self, ino: int, ctx: Ctx) -> list[bytes]:
        if is_past(ino):
            return list(self.history.xattrs(ino))
        return self.live.xattr_names(self.live.node(ino))

    async def setxattr(self, ino: int, name: bytes, value: bytes, ctx: Ctx) -> None:
        self._growing(ino)
        await self.attributes.set_xattr(ino, name, value, ctx)

    async def removexattr(self, ino: int, name: bytes, ctx: Ctx) -> None:
        self._writing(ino)
        await self.attributes.set_xattr(ino, name, None, ctx)

    async def access(self, ino: int, mask: int, ctx: Ctx) -> None:
        """The kernel checks modes itself (default_permissions); what is left is history."""
        if mask & os.W_OK and is_past(ino):
            raise FsError(errno.EROFS)

    # Files

    async def open(self, ino: int, flags: int, ctx: Ctx) -> Opened:
        if is_past(ino):
            if flags & (WRITE_FLAGS | os.O_TRUNC):
                raise FsError(errno.EROFS)
            return Opened(self._new_fh(ino), False, True)
        self._follow()
        return await self.files.open(self._new_fh(), ino, flags, ctx)

    async def create(self, parent: int, name: bytes, mode: int, flags: int, ctx: Ctx) -> tuple[Opened, Attr]:
        self._writing(parent)
        opened, node = self.files.create(self._new_fh(), parent, name, mode, flags, ctx)
        self.live.looked_up(node.ino)
        return opened, self._stat(node)

    async def read(self, fh: int, offset: int, size: int) -> bytes:
        past = self._others.get(fh)
        if past is not None:
            return self.history.read(past, offset, size)
        return self.files.read(self._handle(fh), offset, size)

    async def write(self, fh: int, offset: int, data: bytes) -> int:
        return await self.files.write(self._handle(fh), offset, data)

    async def flush(self, fh: int) -> None:
        handle = self.files.handles.get(fh)
        if handle is not None:
            await self.files.flush(handle)

    async def release(self, fh: int) -> None:
        handle = self.files.handles.get(fh)
        if handle is None:
            self._others.pop(fh, None)
        else:
            await self.files.release(fh, handle)

    async def fsync(self, fh: int, datasync: bool) -> None:
        handle = self.files.handles.get(fh)
        if handle is not None:
            await self.files.fsync(handle)

    # Directories

    async def opendir(self, ino: int, ctx: Ctx) -> int:
        if ino == COMMITS_INO:
            await self._observe()
        elif not ino >> SHIFT:
            self._follow()
            node = self.live.directory(ino)
            node.handles += 1
            self.live.pin(node)
        return self._new_fh(ino)

    async def readdir(self, fh: int, start: int) -> list[tuple[bytes, Attr, int]]:
        """At most BATCH entries behind cookie `start`: name, attributes, cookie.  "." and ".." come
        first and are not lookups; for any other that the kernel takes, `listed` has to be called."""
        ino = self._others.get(fh)
        if ino is None:
            raise FsError(errno.EBADF)
        return list(islice(self._entries(ino, start), BATCH))

    def _entries(self, ino: int, start: int) -> Iterator[tuple[bytes, Attr, int]]:
        live, history = self.live, self.history
        past = is_past(ino)
        if start < DOTS:
            here = history.getattr(ino) if past else self._stat(live.node(ino))
            above = history.parent(ino) if past else live.directory(ino).attr.parent or ROOT_INO
            for at, (name, number) in enumerate(((b".", here.ino), (b"..", above)), 1):
                if at > start:
                    yield name, here._replace(ino=number), at
        after = max(start, DOTS)
        if past:
            for cookie, name, attr in history.entries(ino, after):
                yield name, attr, cookie
            return
        if ino == ROOT_INO and self.history_visible and after == DOTS:
            yield COMMITS, history.commits_attr(), DOTS + 1
        for cookie, name, child in namespace.entries(live, live.node(ino), after):
            yield name, self._stat(live.node(child)), cookie

    def listed(self, ino: int) -> None:
        """The kernel took an entry of a listing: that was a lookup."""
        if not is_past(ino):
            self.live.looked_up(ino)

    async def releasedir(self, fh: int) -> None:
        ino = self._others.pop(fh, None)
        if ino is not None and not is_past(ino):
            node = self.live.node(ino)
            node.handles -= 1
            self.live.unpin(node)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        if self.commits is not None:
            await self.commits.settle()

    # History

    async def _observe(self) -> None:
        """Before anyone looks into history: what he did just before has to be there (P4)."""
        commits = self.commits
        if commits is None:
            self._follow()
            return
        await self.files.releases()
        try:
            await commits.settle()
        except (OSError, StoreError) as exc:
            # A full or failed disk is no reason not to show what there is.
            log.debug("history is shown without the latest staged changes: %s", exc)

    # Life

    async def statfs(self, ctx: Ctx) -> StatFs:
        return disk_below(self.store)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        if self.commits is None:
            task_status.started()
            await trio.sleep_forever()
        else:
            await self.commits.run(task_status=task_status)

    async def settle(self) -> None:
        if self.commits is not None:
            await self.commits.settle()

    async def close(self) -> None:
        """The last commit of all that is pending and staged; durable when it returns."""
        commits = self.commits
        if commits is None:
            return
        failed: Exception | None = None
        for node in list(commits.pending):
            if node.pending is not None and not node.dead:
                try:
                    await commits.point([node], NOBODY)
                except (OSError, CommitfsError) as exc:
                    failed = failed or exc
        try:
            if self.live.staged:
                self.live.check_writable()
            await commits.settle()
        except (OSError, CommitfsError) as exc:
            failed = failed or exc
        if failed is not None:
            raise failed
