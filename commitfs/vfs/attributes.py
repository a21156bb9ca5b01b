"""Attributes and extended attributes of the live tree: staged, but for what waits with contents (P4)."""

import errno
import stat
from typing import Any

from commitfs.errors import FsError
from commitfs.format.inode import NAME_MAX
from commitfs.format.keys import inode_key, xattr_key
from commitfs.vfs.api import Ctx, SetAttr
from commitfs.vfs.files import Files, Handle
from commitfs.vfs.live import Live, Node

XATTR_MAX = 65536
"""Longest value, the kernel's own limit."""


class Attributes:
    def __init__(self, live: Live, files: Files) -> None:
        self.live = live
        self.files = files

    async def set(self, node: Node, wanted: SetAttr, handle: Handle | None, ctx: Ctx) -> None:
        """Change what `wanted` names.  `handle`: the file description it came through (ftruncate)."""
        live, files = self.live, self.files
        commits = files.commits
        await commits.spilled(node)
        now = live.now()
        changes: dict[str, Any] = {}
        if wanted.mode is not None:
            changes["mode"] = stat.S_IFMT(node.attr.mode) | stat.S_IMODE(wanted.mode)
        if wanted.uid is not None:
            changes["uid"] = wanted.uid
        if wanted.gid is not None:
            changes["gid"] = wanted.gid
        staged = bool(changes)
        if wanted.size is not None:
            pending = files.truncate(node, wanted.size, now)
            if handle is not None:
                handle.owes = pending
        if wanted.mtime_ns is not None:
            changes["mtime_ns"] = wanted.mtime_ns
            # Times of a file with pending contents are those contents'.
            staged = staged or node.pending is None
        if wanted.atime_ns is not None:
            changes["atime_ns"] = wanted.atime_ns
        if staged and not node.dead and node.fresh is None:
            commits.reserve(0)
            path = live.paths.of(node)
            with live.changing(inode_key(node.ino)):
                node.attr = node.attr._replace(ctime_ns=now, **changes)
                live.save(node)
                live.changed("setattr", path)
        elif changes:
            node.attr = node.attr._replace(ctime_ns=now, **changes)
            live.keep_atime(node)
        if wanted.size is not None and not node.writers and handle is None and not node.dead:
            # truncate(2) by path, and nobody's close will come (P2).
            await commits.point([node], files.who(ctx))
            live.unpin(node)
        elif live.staged:
            await commits.staged(files.who(ctx))

    def _place(self, ino: int, name: bytes) -> Node:
        if name.startswith(b"system.posix_acl_"):
            # coreutils set modes through it, and fall back to chmod on this answer alone.
            raise FsError(errno.EOPNOTSUPP)
        if not name or len(name) > NAME_MAX:
            raise FsError(errno.ERANGE)
        return self.live.node(ino)

    def xattr(self, ino: int, name: bytes) -> bytes | None:
        return self.live.xattr(self._place(ino, name), name)

    async def set_xattr(self, ino: int, name: bytes, value: bytes | None, ctx: Ctx) -> None:
        """None removes it.  Raises FsError ENODATA, E2BIG, EOPNOTSUPP."""
        live = self.live
        node = self._place(ino, name)
        if value is None and live.xattr(node, name) is None:
            raise FsError(errno.ENODATA)
        if value is not None and len(value) > XATTR_MAX:
            raise FsError(errno.E2BIG)
        now = live.now()
        if node.xattrs is not None:
            node.attr = node.attr._replace(ctime_ns=now)
            if value is None:
                del node.xattrs[name]
            else:
                node.xattrs[name] = value
            return
        path = live.paths.of(node)
        key = xattr_key(node.ino, name)
        with live.changing(inode_key(node.ino), key):
            node.attr = node.attr._replace(ctime_ns=now)
            if value is None:
                live.blobs.pop(key, None)
                live.tree.delete(key)
            else:
                live.save_xattr(node.ino, name, value)
            live.save(node)
            live.changed("removexattr" if value is None else "setxattr", path)
        await self.files.commits.staged(self.files.who(ctx))
