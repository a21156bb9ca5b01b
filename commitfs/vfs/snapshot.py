"""A read-only view of one commit: a whole tree with original modes, owners, times, links (P5).

Synchronous and without a mount: the command line and the history directories of the mount use it.
"""

import errno
import stat
from collections.abc import Iterator

from commitfs.errors import CorruptError, FsError
from commitfs.format.inode import Blob, Dentry, Inode, decode_dentry, decode_inode, decode_xattr
from commitfs.format.keys import (
    DENTRY,
    ROOT_INO,
    XATTR,
    dentry_key,
    inode_key,
    type_range,
    xattr_key,
)
from commitfs.format.record import Record
from commitfs.store.store import Store
from commitfs.vfs.api import Attr
from commitfs.vfs.content import read_tree
from commitfs.vfs.tree import find_dentry

SYMLINKS_MAX = 40
BLOCK = 512


def stat_of(ino: int, inode: Inode, entry_valid: float = 0.0, attr_valid: float = 0.0) -> Attr:
    device = stat.S_ISCHR(inode.mode) or stat.S_ISBLK(inode.mode)
    return Attr(
        ino,
        inode.mode,
        inode.nlink,
        inode.uid,
        inode.gid,
        inode.extra if device else 0,
        inode.size,
        -(-inode.stored // BLOCK),
        inode.atime_ns,
        inode.mtime_ns,
        inode.ctime_ns,
        entry_valid,
        attr_valid,
    )


class Snapshot:
    """The tree of one commit.  Inode numbers are those of the live tree at that time."""

    def __init__(self, store: Store, record: Record | None) -> None:
        self.store = store
        self.record = record
        self.tree = store.tree(record)

    def inode(self, ino: int) -> Inode:
        value = self.tree.get(inode_key(ino))
        if value is None:
            raise FsError(errno.ENOENT)
        return decode_inode(value)

    def attr(self, ino: int) -> Attr:
        return stat_of(ino, self.inode(ino))

    def has_root(self) -> bool:
        """Whether there is a root directory: a store can hold any tree, and one without is no filesystem.
        CorruptError."""
        try:
            return stat.S_ISDIR(self.inode(ROOT_INO).mode)
        except FsError:
            return False

    def dentry(self, directory: int, name: bytes) -> Dentry:
        """Raises FsError ENOENT."""
        found = find_dentry(self.tree, directory, name)
        if found is None:
            raise FsError(errno.ENOENT)
        return found[1]

    def lookup(self, directory: int, name: bytes) -> int:
        return self.dentry(directory, name).ino

    def entries(self, directory: int, after: int = 0) -> Iterator[tuple[bytes, int, int]]:
        """(name, inode, type bits >> 12), in cookie order; see `cookies` for the cookies too."""
        for _, dentry in self.cookies(directory, after):
            yield dentry.name, dentry.ino, dentry.kind

    def cookies(self, directory: int, after: int = 0) -> Iterator[tuple[int, Dentry]]:
        high = type_range(directory, DENTRY)[1]
        for key, value in self.tree.scan(dentry_key(directory, after + 1), high):
            yield int.from_bytes(key[9:17], "big"), decode_dentry(value)

    def resolve(self, path: bytes, *, follow: bool = True) -> int:
        """Inode of a path; symlinks on the way are followed within the tree, the last one if `follow`.

        Raises FsError ENOENT, ENOTDIR, ELOOP.
        """
        todo = [part for part in reversed(path.split(b"/")) if part and part != b"."]
        trail = [ROOT_INO]
        links = 0
        while todo:
            name = todo.pop()
            if name == b"..":
                if len(trail) > 1:
                    trail.pop()
                continue
            if not stat.S_ISDIR(self.inode(trail[-1]).mode):
                raise FsError(errno.ENOTDIR)
            dentry = self.dentry(trail[-1], name)
            if dentry.kind == stat.S_IFLNK >> 12 and (todo or follow):
                links += 1
                if links > SYMLINKS_MAX:
                    raise FsError(errno.ELOOP)
                target = self.readlink(dentry.ino)
                if target.startswith(b"/"):
                    trail = [ROOT_INO]
                todo += [part for part in reversed(target.split(b"/")) if part and part != b"."]
            else:
                trail.append(dentry.ino)
        return trail[-1]

    def walk(self, directory: int = ROOT_INO, path: bytes = b"") -> Iterator[tuple[bytes, int, int]]:
        """(path, inode, type) of everything below a directory, parents before children.

        CorruptError: a directory is met a second time, which only damage can bring about.
        """
        stack = [(path, directory)]
        met = {directory}
        while stack:
            base, ino = stack.pop()
            for name, child, kind in self.entries(ino):
                full = base + b"/" + name if base else name
                yield full, child, kind
                if kind == stat.S_IFDIR >> 12:
                    if child in met:
                        raise CorruptError(f"directory {child} lies in itself or in two others")
                    met.add(child)
                    stack.append((full, child))

    def read(self, ino: int, offset: int, size: int) -> bytes:
        inode = self.inode(ino)
        if stat.S_ISDIR(inode.mode):
            raise FsError(errno.EISDIR)
        end = min(offset + size, inode.size)
        if end <= offset:
            return b""
        return bytes(read_tree(self.tree, self.store, ino, offset, end))

    def _long(self, value: bytes | Blob) -> bytes:
        return self.store.read_checked(*value, "a long value") if isinstance(value, Blob) else value

    def readlink(self, ino: int) -> bytes:
        inode = self.inode(ino)
        if not stat.S_ISLNK(inode.mode):
            raise FsError(errno.EINVAL)
        return self._long(inode.target)

    def xattr(self, ino: int, name: bytes) -> bytes:
        value = self.tree.get(xattr_key(ino, name))
        if value is None:
            raise FsError(errno.ENODATA)
        return self._long(decode_xattr(value))

    def xattr_names(self, ino: int) -> list[bytes]:
        return [key[9:] for key, _ in self.tree.scan(*type_range(ino, XATTR))]

    def xattrs(self, ino: int) -> dict[bytes, bytes]:
        return {
            key[9:]: self._long(decode_xattr(value)) for key, value in self.tree.scan(*type_range(ino, XATTR))
        }
