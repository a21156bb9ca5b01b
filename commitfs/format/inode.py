"""Values of inodes, dentries, tombstones, xattrs and the allocator (docs/format.md, "Keys and values")."""

from stat import S_IFDIR, S_IFMT, S_IFREG, S_ISBLK, S_ISCHR, S_ISDIR, S_ISLNK
from struct import Struct, error
from typing import NamedTuple

from commitfs.errors import CorruptError
from commitfs.types import OFFSET_LIMIT

_INODE = Struct("<IIIIQQqqqIIQ")
assert _INODE.size == 72
_U32 = Struct("<I")
_U64 = Struct("<Q")
_DENTRY = Struct("<BII")
_BLOB = Struct("<QII")

INLINE_MAX = 440
"""Longest symlink target or xattr value kept in its node; longer ones are blobs."""
BLOB_MAX = 65536
"""Longest of those: the kernel hands over no longer xattr value and no longer target."""
NAME_MAX = 255


class Blob(NamedTuple):
    """Bytes kept outside the tree: log offset, length, CRC32C."""

    offset: int
    length: int
    crc: int


class Inode(NamedTuple):
    """One inode.  Times are ns since 1970, signed; `changed` is the commit that last changed it."""

    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    """Bytes; of a directory the number of its entries."""
    stored: int
    """Bytes of the file that are not holes."""
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    changed: int
    parent: int
    """Directory of the primary link; further links have back references.  0: the root."""
    cookie: int
    """Cookie of the primary link's dentry in `parent`."""
    extra: int = 0
    """Device number of a device; next inode number for a child of a directory (0: none yet)."""
    target: bytes | Blob = b""
    """Of a symlink."""

    # Done several times a save: `_replace` takes three times as long.

    def sized(self, size: int, when: int) -> "Inode":
        """With another size, modified at `when`."""
        mode, nlink, uid, gid, _, stored, atime, _, _, changed, parent, cookie, extra, target = self
        return _make(
            (mode, nlink, uid, gid, size, stored, atime, when, when, changed, parent, cookie, extra, target)
        )

    def changed_in(self, commit: int, stored: int | None = None) -> "Inode":
        """As commit `commit` has it (and with as many bytes `stored`)."""
        mode, nlink, uid, gid, size, old, atime, mtime, ctime, _, parent, cookie, extra, target = self
        if stored is None:
            stored = old
        return _make(
            (mode, nlink, uid, gid, size, stored, atime, mtime, ctime, commit, parent, cookie, extra, target)
        )


_make = Inode._make


def encode_inode(inode: Inode) -> bytes:
    head = _INODE.pack(*inode[:12])
    kind = S_IFMT(inode.mode)
    if kind == S_IFREG:
        return head
    if S_ISDIR(kind):
        return head + _U32.pack(inode.extra)
    if S_ISLNK(kind):
        if isinstance(inode.target, Blob):
            return head + b"\0" + _BLOB.pack(*inode.target)
        return head + inode.target
    if S_ISCHR(kind) or S_ISBLK(kind):
        return head + _U64.pack(inode.extra)
    return head


def decode_inode(value: bytes) -> Inode:
    """Raises CorruptError: the checksum fitted, but no writer makes such a value."""
    try:
        fields = _INODE.unpack_from(value)
        kind = S_IFMT(fields[0])
        extra = 0
        target: bytes | Blob = b""
        if S_ISDIR(kind):
            (extra,) = _U32.unpack_from(value, _INODE.size)
        elif S_ISLNK(kind):
            target = value[_INODE.size :]
            if target[:1] == b"\0":
                target = _decode_blob(target)
        elif S_ISCHR(kind) or S_ISBLK(kind):
            (extra,) = _U64.unpack_from(value, _INODE.size)
    except error as exc:
        raise CorruptError(f"inode value makes no sense: {exc}") from None
    if fields[4] >= OFFSET_LIMIT:
        raise CorruptError("inode value makes no sense: no file is as large")
    return Inode._make((*fields, extra, target))


def _decode_blob(value: bytes) -> Blob:
    """From the second byte on.  CorruptError: it cannot lie in a store, and reading it would take long
    or fail in odd ways."""
    blob = Blob(*_BLOB.unpack_from(value, 1))
    if blob.length > BLOB_MAX or blob.offset + blob.length >= OFFSET_LIMIT:
        raise CorruptError("place or length of a long value makes no sense")
    return blob


DIR_KIND = S_IFDIR >> 12
"""The `kind` of a directory's dentry."""


class Dentry(NamedTuple):
    """A name in a directory; as a tombstone, one that was there before commit `changed`."""

    kind: int
    """The type bits of the mode, shifted right by 12 (DT_REG, DT_DIR …)."""
    changed: int
    ino: int
    name: bytes


def encode_dentry(dentry: Dentry) -> bytes:
    return _DENTRY.pack(dentry.kind, dentry.changed, dentry.ino) + dentry.name


def decode_dentry(value: bytes) -> Dentry:
    try:
        kind, changed, ino = _DENTRY.unpack_from(value)
    except error as exc:
        raise CorruptError(f"dentry value makes no sense: {exc}") from None
    return Dentry(kind, changed, ino, value[_DENTRY.size :])


def encode_xattr(value: bytes | Blob) -> bytes:
    return b"\1" + _BLOB.pack(*value) if isinstance(value, Blob) else b"\0" + value


def decode_xattr(value: bytes) -> bytes | Blob:
    if value[:1] == b"\0":
        return value[1:]
    if value[:1] != b"\1" or len(value) != 1 + _BLOB.size:
        raise CorruptError("xattr value makes no sense")
    return _decode_blob(value)


def encode_allocator(next_group: int) -> bytes:
    return _U32.pack(next_group)


def decode_allocator(value: bytes) -> int:
    if len(value) != _U32.size:
        raise CorruptError("allocator value makes no sense")
    return int(_U32.unpack(value)[0])
