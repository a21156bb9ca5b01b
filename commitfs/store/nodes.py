"""The cache of clean nodes, loaded from the log when they are asked for.

The nodes themselves are held in C (native/cache.c).  `Nodes` may be shared by trees that are used in
several threads.
"""

from typing import Any, NoReturn, Protocol

from commitfs.errors import CorruptError
from commitfs.format.node import BODY_MAX, DIRTY, STORED_MAX, Entry, Root, split_entries
from commitfs.native import ffi, lib

_EAGAIN = -11


class LogReader(Protocol):
    """Where nodes are read from."""

    def read(self, offset: int, length: int) -> bytes:
        """Log bytes, those of commits still in flight included.  `CorruptError` if there are fewer;
        `OSError`."""


class Nodes:
    """Bounded cache of decoded nodes by their offset in the log, the least recently used going first.

    What comes from the log is checked against the checksum of its pointer, and decoded with everything
    checked (P7): `CorruptError`.  At least 128 nodes are kept, whatever `max_bytes` says.
    """

    def __init__(self, log: LogReader, max_bytes: int = 16 << 20) -> None:
        self._log = log
        handle = lib.cfs_nodes_new(max_bytes)
        if not handle:
            raise MemoryError
        self.handle: Any = ffi.gc(handle, lib.cfs_nodes_free)

    def __len__(self) -> int:
        return self.handle.count  # type: ignore[no-any-return]

    @property
    def bytes_held(self) -> int:
        """Bytes the nodes in the cache take."""
        return self.handle.bytes  # type: ignore[no-any-return]

    def load(self, at: Root) -> None:
        """Read the node at `at` into the cache.  `CorruptError`, `OSError`."""
        if not 0 < at.offset < DIRTY or at.length > STORED_MAX:
            raise CorruptError("tree node", at.offset)
        stored = self._log.read(at.offset, at.length)
        rc = lib.cfs_nodes_load(self.handle, at.offset, at.length, at.level, at.crc, stored, len(stored))
        if rc:
            fail(rc, at.offset)

    def entries(self, at: Root) -> list[Entry]:
        """Keys and values of one node, ascending; of an internal node the values are packed pointers."""
        out = ffi.new("uint8_t[]", BODY_MAX)
        while True:
            size = lib.cfs_nodes_entries(self.handle, at.offset, at.length, at.level, at.crc, out)
            if size >= 0:
                return split_entries(bytes(ffi.buffer(out, size)))
            self.load(at)

    def children(self, at: Root) -> list[tuple[bytes, Root]]:
        """The nodes below an internal node, each with the lowest key that belongs under it (b"" for the
        first)."""
        return [(key, Root.unpack(value)) for key, value in self.entries(at)]

    def forget(self, offset: int) -> None:
        """Drop the nodes at `offset` and above: what lies there may be written anew."""
        lib.cfs_nodes_forget(self.handle, offset)


def fail(rc: int, offset: int = -1) -> NoReturn:
    """Raise what a return code of the tree's C functions stands for."""
    if rc == -74:  # EBADMSG
        raise CorruptError("tree node", offset)
    if rc == -12:  # ENOMEM
        raise MemoryError
    raise ValueError(f"key, value or tree out of bounds ({-rc})")
