"""The values that travel between the vfs and its adapters."""

from typing import NamedTuple


class Ctx(NamedTuple):
    """Who asks."""

    uid: int
    gid: int
    pid: int
    umask: int = 0


class Attr(NamedTuple):
    """Attributes as stat shows them, times in ns.

    `entry_valid` and `attr_valid` are seconds for which the kernel may keep the name and the
    attributes.  ``ino == 0`` is a name that does not exist, which the kernel may remember too.
    """

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    entry_valid: float = 0.0
    attr_valid: float = 0.0


LIVE_VALID = 3600.0
"""Seconds the kernel may keep names and attributes of the live tree: all changes pass through it."""
MISSING = Attr(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, LIVE_VALID, LIVE_VALID)
"""Of a name that is not there, as long as nothing makes it."""


class SetAttr(NamedTuple):
    """What setattr shall change; None leaves a thing alone."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None


class Opened(NamedTuple):
    fh: int
    direct_io: bool
    keep_cache: bool


class StatFs(NamedTuple):
    bsize: int
    frsize: int
    blocks: int
    bfree: int
    bavail: int
    files: int
    ffree: int
    favail: int
    namemax: int
