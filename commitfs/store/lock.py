"""One writer per store (P8).

Exclusion is an OFD lock on byte 0: it belongs to the open file, so that closing another descriptor of
the same file does not drop it, as it would drop a classic lock.  A classic lock on byte 1 only lets
others ask who the owner is; OFD locks do not know a pid.
"""

import errno
import fcntl
import struct
from typing import Final

from commitfs.errors import LockedError, StoreError

_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, len, pid
_EXCLUSION_BYTE: Final = 0
_OWNER_BYTE: Final = 1
_SEEK_SET: Final = 0


def _flock(kind: int, byte: int) -> bytes:
    return _FLOCK.pack(kind, _SEEK_SET, byte, 1, 0)


def owner_pid(fd: int) -> int:
    """Pid of the process that has the store open for writing, 0 if none or unknown.  A process does
    not see its own."""
    answer = fcntl.fcntl(fd, fcntl.F_GETLK, _flock(fcntl.F_WRLCK, _OWNER_BYTE))
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return 0 if kind == fcntl.F_UNLCK else pid


def acquire(fd: int, path: str) -> None:
    """Take the store for this open file, until it is closed; LockedError if another has it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, _EXCLUSION_BYTE))
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise StoreError(f"{path} cannot be locked: {error.strerror}") from error
        pid = owner_pid(fd)
        who = f"process {pid}" if pid else "another process"
        raise LockedError(f"{path} is in use: {who} has it open for writing; unmount it first", pid) from None
    fcntl.fcntl(fd, fcntl.F_SETLK, _flock(fcntl.F_WRLCK, _OWNER_BYTE))


__all__ = ["acquire", "owner_pid"]
