"""Every error commitfs raises on purpose.

The message of each is one line, says what is wrong and, where there is something to do, what to do:
the command line prints it as it is behind ``commitfs: ``.  Raised near the cause, mapped to an errno
once (fuse/) or to an exit code once (cli/).
"""

import errno as _errno
import os

NO_ROOM = frozenset((_errno.ENOSPC, _errno.EDQUOT, _errno.EFBIG))
"""What a full disk, a used-up quota or the largest file size say: it can pass, and nothing is broken."""


class CommitfsError(Exception):
    """Base of all of them.  ``exit_code`` is what the command line exits with."""

    exit_code = 1


class UsageError(CommitfsError):
    """What the caller asked for cannot be meant: a bad name, a bad mountpoint, a bad option."""

    exit_code = 2


class NotFoundError(CommitfsError):
    """No such commit, name or path in the store."""


class StoreError(CommitfsError):
    """The store cannot be used as asked."""


class FormatError(StoreError):
    """The file is not a store, or is one of a format this version does not know."""


class LockedError(StoreError):
    """Another process has the store open for writing.  ``pid`` is its owner, 0 if unknown."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


class ReadOnlyError(StoreError):
    """The store takes no commits: opened for reading, latched after a failed sync, or damaged."""


class CorruptError(StoreError):
    """A checksum does not fit, or what it covers makes no sense (P7).  Mapped to EIO."""

    def __init__(self, what: str, offset: int = -1) -> None:
        super().__init__(what if offset < 0 else f"{what} at offset {offset} is damaged")
        self.offset = offset


class FsError(CommitfsError):
    """A filesystem call fails with ``errno``."""

    def __init__(self, errno: int, message: str = "") -> None:
        super().__init__(message or os.strerror(errno))
        self.errno = errno

    def __repr__(self) -> str:
        return f"FsError({_errno.errorcode.get(self.errno, self.errno)})"


def one_line(exc: BaseException) -> str:
    """What to tell people of an error that ends something: no number, no name of a class where it is
    one of ours or of the system's."""
    if isinstance(exc, CommitfsError):
        return str(exc)
    if not isinstance(exc, OSError):
        return f"{type(exc).__name__}: {exc}"
    reason = exc.strerror or str(exc)
    if exc.errno == _errno.ENOENT and exc.filename is None and not _has_folder():
        return "the working directory is gone: change to another"
    return reason if exc.filename is None else f"{os.fsdecode(exc.filename)}: {reason}"


def _has_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
