"""The one seam for file I/O (invariant S1): nothing else under store/ touches a descriptor.

Faults, crashes and slow media are injected by other implementations of `StoreFile`; the real one is
`commitfs.store.real_file`.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from commitfs.types import Buffer


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
        """fdatasync."""

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
        """Start the write; `buffers` stay untouched until end_durable."""

    def durable_fileno(self) -> int:
        """A descriptor that becomes readable when the write begun has ended."""

    def end_durable(self) -> None:
        """Wait for the write begun; raises what write_durable would have raised."""


class WriteFailed(OSError):
    """A write ended with ENOSPC, EDQUOT or EFBIG: only that write failed, nothing durable before
    it is in doubt, and the same range may be written again as a whole."""


__all__ = ["OverlappedFile", "StoreFile", "WriteFailed"]
