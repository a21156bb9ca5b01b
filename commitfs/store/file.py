"""The one seam for file I/O (invariant S1): nothing else under store/ touches a descriptor.

Faults, crashes and slow media are injected by other implementations of `StoreFile`.
"""

import ctypes
import errno
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast, runtime_checkable

from commitfs import native
from commitfs.errors import NO_ROOM, CommitfsError, StoreError, UsageError
from commitfs.store import lock
from commitfs.types import Buffer

STAGE_ALIGN: Final = 4096
"""Stage data begins and ends at multiples of this, so that it can be written past the page cache."""


def rounded_up(offset: int, to: int) -> int:
    """The first multiple of `to` at or above `offset`."""
    return -(-offset // to) * to


class StoreFile(Protocol):
    """What the store asks of the file below it.  All calls block; errors are `OSError`.

    Calls may come from several threads; at most one of them writes records at a time.
    """

    writable: bool

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write `buffers` one behind the other at `offset`; durable when this returns.

        Records only.  The range alone is synced (RWF_DSYNC), or the whole file where that is
        refused.  `WriteFailed` says that only this write failed and may be made again, whole.
        """

    def write_aside(self, data: Buffer, offset: int) -> None:
        """As write_durable, for slots and the tail's zeros, through a descriptor of its own: the
        kernel reports a failed page once per descriptor, so a shared one could let a commit be
        acknowledged whose error the other write was told."""

    def write(self, data: Buffer, offset: int) -> None:
        """Write without syncing, through the same descriptor as write_durable."""

    def write_stage(self, data: Buffer, offset: int) -> None:
        """Write stage data through a descriptor of its own (O_DIRECT where that is allowed and
        `data`, a multiple of 4096 at an offset that is one, permits it)."""

    def sync_stage(self) -> None:
        """Make durable what write_stage wrote."""

    def sync(self) -> None:
        """fdatasync; never tried again."""

    def allocate(self, offset: int, length: int) -> None:
        """Reserve blocks for a range (fallocate), growing the file over it if need be.
        ENOSPC, EDQUOT, EFBIG where there is no room.  Contents of new space read as zeros.
        Not durable by itself.  Called only for ranges that begin at or behind the end of the file."""

    def punch(self, offset: int, length: int) -> None:
        """Give the blocks of a range back; it reads as zeros.  Does nothing where unsupported."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def drop_cache(self, offset: int, length: int = 0) -> None:
        """Forget clean cached pages of the range (length 0: to the end), so that reads come from
        the device."""

    def holes(self, offset: int) -> int:
        """Offset of the first hole at or after `offset` (SEEK_HOLE); size() if there is none."""

    def replaced(self) -> bool:
        """Whether the path now names another file than the one open (compact)."""

    def close(self) -> None: ...


@runtime_checkable
class OverlappedFile(Protocol):
    """A file that can also do write_durable beside the caller, one write at a time."""

    def begin_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Start the write; `buffers` stay untouched until end_durable.  OSError: it cannot be done beside
        the caller, for want of a thread or a descriptor, and was not begun."""

    def durable_fileno(self) -> int:
        """A descriptor that becomes readable when the write begun has ended."""

    def end_durable(self) -> None:
        """Wait for the write begun; raises what write_durable would have raised."""


class WriteFailed(OSError):
    """A write ended with ENOSPC, EDQUOT or EFBIG, or ENOMEM before it began: only that write failed, nothing
    durable before it is in doubt, and the same range may be written again as a whole."""


_OF_THE_MACHINE: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR))
_WRITE: Final = os.O_WRONLY | os.O_CLOEXEC
_ASIDE: Final = "aside"
_STAGE: Final = "stage"
_STAGE_DIRECT: Final = "stage, direct"

_PUNCH_HOLE_KEEP_SIZE: Final = 3


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """fallocate(2) with 64-bit offsets, which `os` does not offer; a failed punch gives nothing back,
    and that is all."""
    libc = ctypes.CDLL(None)
    for name in ("fallocate64", "fallocate"):
        found = getattr(libc, name, None)
        if found is not None and (name.endswith("64") or ctypes.sizeof(ctypes.c_long) == 8):
            found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
            return cast(Callable[[int, int, int, int], int], found)
    return None


_fallocate: Final = _find_fallocate()
_ZEROS: Final = bytes(1 << 20)


def is_no_room(error: OSError) -> bool:
    """Whether the error says that there is no room, which can pass, rather than that the medium failed.
    A sync that found none has failed like any other (S6)."""
    if isinstance(error, WriteFailed):
        return True
    return error.errno in NO_ROOM and not isinstance(error, native.SyncFailed)


class _Pace:
    """Size of one stage write: about 2 ms of device time, so that a commit beside it waits no longer."""

    LEAST = 64 << 10
    MOST = 1 << 20

    def __init__(self) -> None:
        self.chunk = 256 << 10

    def took(self, nbytes: int, seconds: float) -> None:
        if seconds > 0.004:
            self.chunk = max(self.LEAST, self.chunk // 2)
        elif seconds < 0.001 and nbytes == self.chunk:
            self.chunk = min(self.MOST, self.chunk * 2)


class RealFile:
    """A `StoreFile` on the file system, and an `OverlappedFile` when writable.

    Three kinds of descriptors, since the kernel reports a lost page once per open file: records, what
    is written aside, stage data.  A writer has all of them from the start, and the buffer for stages: a
    process that runs out of descriptors or memory meanwhile need not stop saving.
    """

    def __init__(self, path: str, fd: int, *, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self._fd = fd
        self._others: dict[str, int] = {}
        self._stage_lock = threading.Lock()
        self._staged: set[str] = set()
        """Which descriptors stage data was written through: these have to be synced."""
        self._stage_buffer: mmap.mmap | None = None
        self._direct = False
        self._pace = _Pace()
        self._committer: native.NativeCommitter | None = None
        if writable:
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise

    def _prepare(self) -> None:
        self._others[_ASIDE] = self._open_again(_WRITE)
        self._others[_STAGE] = self._open_again(_WRITE)
        if hasattr(os, "O_DIRECT"):
            try:
                self._others[_STAGE_DIRECT] = self._open_again(_WRITE | os.O_DIRECT)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # no such thing on this file system
                    raise
            else:
                self._direct = True
                self._stage_buffer = mmap.mmap(-1, _Pace.MOST)

    def _open_again(self, flags: int) -> int:
        """Not by its path where that can be had: it may have been renamed, or be mounted over."""
        try:
            return os.open(f"/proc/self/fd/{self._fd}", flags)
        except FileNotFoundError:  # no /proc
            fd = os.open(self.path, flags)
            if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
                os.close(fd)
                raise OSError(errno.ESTALE, f"{self.path} is another file by now") from None
            return fd

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length:
            return data
        parts = [data]
        got = len(data)
        size = -1
        while got < length:
            data = os.pread(self._fd, length - got, offset + got)
            parts.append(data)
            got += len(data)
            if data:
                continue
            # Behind the end, or so it was: a writer may have made the file longer since.
            if offset + got >= size and (size := self.size()) <= offset + got:
                break
            if parts[-2:] == [b"", b""]:
                # Whoever took that for the end of the log would cut off what follows.
                raise OSError(errno.EIO, f"the file cannot be read at offset {offset + got}, before its end")
        return b"".join(parts)

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        try:
            native.write_durable(self._fd, buffers, offset)
        except (OSError, MemoryError) as error:
            raise _told_apart(error) from None

    def write_aside(self, data: Buffer, offset: int) -> None:
        try:
            native.write_durable(self._others[_ASIDE], [data], offset)
        except (OSError, MemoryError) as error:
            raise _told_apart(error) from None

    def write(self, data: Buffer, offset: int) -> None:
        native.write_all(self._fd, [data], offset)

    def write_stage(self, data: Buffer, offset: int) -> None:
        with self._stage_lock, memoryview(data).cast("B") as view:
            at = 0
            while at < len(view):
                piece = view[at : at + self._pace.chunk]
                started = time.monotonic()
                self._write_stage_piece(piece, offset + at)
                self._pace.took(len(piece), time.monotonic() - started)
                at += len(piece)

    def _write_stage_piece(self, piece: memoryview, offset: int) -> None:
        buffer = self._stage_buffer
        if self._direct and buffer is not None and not (len(piece) | offset) % STAGE_ALIGN:
            buffer[: len(piece)] = piece
            self._staged.add(_STAGE_DIRECT)
            try:
                with memoryview(buffer) as whole, whole[: len(piece)] as aligned:
                    native.write_all(self._others[_STAGE_DIRECT], [aligned], offset)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = False
        # Through the cache, one piece at a time: what waits there would be in a commit's way.
        self._staged.add(_STAGE)
        native.write_durable(self._others[_STAGE], [piece], offset)

    def sync_stage(self) -> None:
        for purpose in tuple(self._staged):
            native.sync(self._others[purpose])

    def sync(self) -> None:
        native.sync(self._fd)

    def allocate(self, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, offset, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            for at in range(offset, offset + length, len(_ZEROS)):
                native.write_all(self._fd, [_ZEROS[: offset + length - at]], at)

    def punch(self, offset: int, length: int) -> None:
        if _fallocate is not None:
            _fallocate(self._fd, _PUNCH_HOLE_KEEP_SIZE, offset, length)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def drop_cache(self, offset: int, length: int = 0) -> None:
        os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    def holes(self, offset: int) -> int:
        size = self.size()
        if offset >= size:
            return size
        return os.lseek(self._fd, offset, os.SEEK_HOLE)

    def replaced(self) -> bool:
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def begin_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        try:
            if self._committer is None:
                self._committer = native.NativeCommitter()
            self._committer.submit(self._fd, buffers, offset)
        except MemoryError as error:
            raise _told_apart(error) from None

    def durable_fileno(self) -> int:
        assert self._committer is not None
        return self._committer.fileno()

    def end_durable(self) -> None:
        assert self._committer is not None
        try:
            self._committer.finish()
        except OSError as error:
            raise _told_apart(error) from None

    def close(self) -> None:
        if self._committer is not None:
            self._committer.close()
            self._committer = None
        for fd in self._others.values():
            os.close(fd)
        self._others.clear()
        if self._stage_buffer is not None:
            self._stage_buffer.close()
            self._stage_buffer = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _told_apart(error: OSError | MemoryError) -> OSError:
    """The error of a durable write, as WriteFailed where only that write failed."""
    if isinstance(error, MemoryError):  # on the way to the write
        return WriteFailed(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if is_no_room(error):
        return WriteFailed(error.errno, error.strerror)
    return error


def _cannot_open(path: str, error: OSError) -> CommitfsError:
    """What the file is or who may open it is for the caller to mend; the state of the machine is not."""
    kind = StoreError if error.errno in _OF_THE_MACHINE else UsageError
    return kind(f"{path} cannot be opened: {error.strerror}")


def open_file(path: str, writable: bool) -> RealFile:
    """Open an existing store file, locked when `writable`; UsageError, StoreError, LockedError."""
    try:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory, not a store") from None
    except OSError as error:
        raise _cannot_open(path, error) from None
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path} is a directory, not a store")
        if not stat.S_ISREG(mode):
            raise UsageError(f"{path} is not a regular file")
        if writable:
            lock.acquire(fd, path)
    except BaseException:
        os.close(fd)
        raise
    try:
        return RealFile(os.path.abspath(path), fd, writable=writable)
    except OSError as error:
        raise _cannot_open(path, error) from None


__all__ = [
    "STAGE_ALIGN",
    "OverlappedFile",
    "RealFile",
    "StoreFile",
    "WriteFailed",
    "is_no_room",
    "open_file",
    "rounded_up",
]
