"""Request handlers: convert, await the vfs, convert back.  No policy here: the vfs decides.

Every handler reaches its vfs call without awaiting anything before, so that the vfs sees requests in
the order in which the kernel sent them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, ReaddirToken, RequestContext, SetattrFields, StatvfsData

from commitfs.fuse.convert import asker, changes, entry, file_info, statvfs
from commitfs.fuse.errors import errno_of, guard
from commitfs.fuse.readdir import list_into

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commitfs.vfs.vfs import Vfs


class Operations(pyfuse3.Operations):
    """What pyfuse3 calls for each request of the kernel."""

    supports_dot_lookup = True
    # With the writeback cache two appenders lost commits and a rename committed an empty file.
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, vfs: Vfs) -> None:
        super().__init__()
        self._vfs = vfs
        self.open_requests = 0
        self.serving = trio.Event()
        """Set when the kernel's first message was answered: requests are served from here on."""

    def init(self) -> None:
        self.serving.set()

    # Names

    @guard
    async def lookup(self, parent_inode: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        return entry(await self._vfs.lookup(parent_inode, name, asker(ctx)))

    def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:  # type: ignore[override]
        # Not a coroutine: pyfuse3 awaits what it gets unless it is None, and there is nothing to wait
        # for.  No caller could be told of an error either.
        try:
            self._vfs.forget(inode_list)
        except Exception as exc:
            errno_of(exc, "forget")

    @guard
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        return entry(await self._vfs.mknod(parent_inode, name, mode, rdev, asker(ctx)))

    @guard
    async def mkdir(self, parent_inode: int, name: bytes, mode: int, ctx: RequestContext) -> EntryAttributes:
        return entry(await self._vfs.mkdir(parent_inode, name, mode, asker(ctx)))

    @guard
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        return entry(await self._vfs.symlink(parent_inode, name, target, asker(ctx)))

    @guard
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        return entry(await self._vfs.link(inode, new_parent_inode, new_name, asker(ctx)))

    @guard
    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        await self._vfs.unlink(parent_inode, name, asker(ctx))

    @guard
    async def rmdir(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        await self._vfs.rmdir(parent_inode, name, asker(ctx))

    @guard
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        await self._vfs.rename(parent_inode_old, name_old, parent_inode_new, name_new, flags, asker(ctx))

    # Attributes

    @guard
    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        return entry(await self._vfs.getattr(inode, asker(ctx)))

    @guard
    async def setattr(
        self, inode: int, attr: EntryAttributes, fields: SetattrFields, fh: int | None, ctx: RequestContext
    ) -> EntryAttributes:
        return entry(await self._vfs.setattr(inode, changes(attr, fields), fh, asker(ctx)))

    @guard
    async def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        return await self._vfs.readlink(inode)

    @guard
    async def access(self, inode: int, mode: int, ctx: RequestContext) -> bool:
        # Not reached while the kernel checks modes itself (default_permissions).
        await self._vfs.access(inode, mode, asker(ctx))
        return True

    @guard
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        return statvfs(await self._vfs.statfs(asker(ctx)))

    @guard
    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        return await self._vfs.getxattr(inode, name, asker(ctx))

    @guard
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        # pyfuse3 has dealt with XATTR_CREATE and XATTR_REPLACE by asking getxattr.
        await self._vfs.setxattr(inode, name, value, asker(ctx))

    @guard
    async def listxattr(self, inode: int, ctx: RequestContext) -> Sequence[bytes]:
        return await self._vfs.listxattr(inode, asker(ctx))

    @guard
    async def removexattr(self, inode: int, name: bytes, ctx: RequestContext) -> None:
        await self._vfs.removexattr(inode, name, asker(ctx))

    # Files

    @guard
    async def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        return file_info(await self._vfs.open(inode, flags, asker(ctx)))

    @guard
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        opened, attr = await self._vfs.create(parent_inode, name, mode, flags, asker(ctx))
        return file_info(opened), entry(attr)

    @guard
    async def read(self, fh: int, off: int, size: int) -> bytes:
        return await self._vfs.read(fh, off, size)

    @guard
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return await self._vfs.write(fh, off, buf)

    @guard
    async def flush(self, fh: int) -> None:
        await self._vfs.flush(fh)

    @guard
    async def release(self, fh: int) -> None:
        await self._vfs.release(fh)

    @guard
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._vfs.fsync(fh, datasync)

    # Directories

    @guard
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        return await self._vfs.opendir(inode, asker(ctx))

    @guard
    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        await list_into(self._vfs, fh, start_id, token)

    @guard
    async def releasedir(self, fh: int) -> None:
        await self._vfs.releasedir(fh)

    @guard
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._vfs.fsyncdir(fh, datasync)
