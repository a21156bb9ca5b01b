"""The least a mount in Python costs: a filesystem that keeps nothing but one synced write a save.

``python -m benchmarks.floor LOG FOLDER`` serves FOLDER with pyfuse3.  Names and handles are
numbers, reading is not possible; at FLUSH the last bytes written go, behind 128 others, to LOG
over zeros laid before, synced in the same call.  What a commitfs mount takes beyond this is its
own work, and what this takes beyond the sync is the kernel's, libfuse's and pyfuse3's.
"""

import errno
import os
import stat
import sys
from collections.abc import Sequence

import pyfuse3
import trio

from benchmarks.bench import RECORD

ROOM = 64 << 20
"""Bytes of zeros laid; the writes begin anew at their end."""
FOREVER = 3600.0


def _attributes(ino: int) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = ino
    entry.st_mode = stat.S_IFDIR | 0o755 if ino == pyfuse3.ROOT_INODE else stat.S_IFREG | 0o644
    entry.st_nlink = 1
    entry.st_uid = os.getuid()
    entry.st_gid = os.getgid()
    entry.entry_timeout = entry.attr_timeout = FOREVER
    return entry


class Floor(pyfuse3.Operations):
    enable_writeback_cache = False

    def __init__(self, log: int) -> None:
        super().__init__()
        self._log = log
        self._end = 0
        self._newest = int(pyfuse3.ROOT_INODE)
        self._data = b""

    async def getattr(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        return _attributes(inode)

    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def create(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        self._newest += 1
        handle = pyfuse3.FileHandleT(self._newest)
        return pyfuse3.FileInfo(fh=handle, direct_io=True), _attributes(self._newest)

    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        self._data = buf
        return len(buf)

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        size = RECORD + len(self._data)
        if self._end + size > ROOM:
            self._end = 0
        if os.pwritev(self._log, [bytes(RECORD), self._data], self._end, os.RWF_DSYNC) != size:
            raise pyfuse3.FUSEError(errno.EIO)
        self._end += size

    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        return

    async def forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        return


def main(path: str, folder: str) -> None:
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.pwrite(log, bytes(ROOM), 0) != ROOM:
        raise OSError("short write")
    os.fsync(log)
    pyfuse3.init(Floor(log), folder, {*pyfuse3.default_options, "fsname=floor"})
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
