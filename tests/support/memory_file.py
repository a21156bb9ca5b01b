"""A store file in memory, with a page cache that can lose pages behind the writer's back.

What it models of Linux beyond plain bytes: after a failed sync the pages are clean, so a reader
still sees what was written while the device lacks it, and no later sync will write it; only
`drop_cache` brings the truth to light.  Writing anywhere in such a page makes all of it dirty
again.
"""

import threading
from collections.abc import Sequence

from commitfs.types import Buffer

PAGE = 4096


class MemoryDisk:
    """The bytes of one file; handles on it come and go with each open.

    `cache` is what every handle reads.  `dirty` and `lost` map the number of a page to what the
    device holds of it: of pages not yet written out, and of clean ones whose write failed.
    """

    def __init__(self, contents: Buffer = b"") -> None:
        self.cache = bytearray(contents)
        self.dirty: dict[int, bytes] = {}
        self.lost: dict[int, bytes] = {}
        self.lock = threading.RLock()

    def put(self, data: Buffer, offset: int) -> None:
        with self.lock:
            self._touch(offset, len(data))
            if offset > len(self.cache):
                self.cache.extend(bytes(offset - len(self.cache)))
            self.cache[offset : offset + len(data)] = data

    def zero(self, offset: int, length: int) -> None:
        with self.lock:
            length = min(length, len(self.cache) - offset)
            if length > 0:
                self._touch(offset, length)
                self.cache[offset : offset + length] = bytes(length)

    def resize(self, size: int) -> None:
        with self.lock:
            del self.cache[size:]
            self.cache.extend(bytes(size - len(self.cache)))
            for pages in (self.dirty, self.lost):
                for page in [p for p in pages if p * PAGE >= size]:
                    del pages[page]

    def synced(self, offset: int = 0, length: int | None = None) -> None:
        """The dirty pages of a range, of all by default, have reached the device."""
        with self.lock:
            for page in self._in_range(self.dirty, offset, length):
                del self.dirty[page]

    def lose(self, offset: int = 0, length: int | None = None) -> None:
        """Writing the dirty pages of a range failed: they are clean now, and not on the device."""
        with self.lock:
            for page in self._in_range(self.dirty, offset, length):
                self.lost[page] = self.dirty.pop(page)

    def drop_cache(self, offset: int = 0, length: int | None = None) -> None:
        """Show what the device holds instead of the clean pages of a range, of all by default."""
        with self.lock:
            for page in self._in_range(self.lost, offset, length):
                held = self.lost.pop(page)
                end = min(page * PAGE + len(held), len(self.cache))
                self.cache[page * PAGE : end] = held[: end - page * PAGE]

    def lost_pages(self, offset: int, length: int) -> list[tuple[int, bytes]]:
        """(offset, cached contents) of each lost page of a range."""
        pages = self._in_range(self.lost, offset, length)
        return [(p * PAGE, bytes(self.cache[p * PAGE : (p + 1) * PAGE])) for p in sorted(pages)]

    def _touch(self, offset: int, length: int) -> None:
        if not length:
            return
        for page in range(offset // PAGE, (offset + length - 1) // PAGE + 1):
            held = self.lost.pop(page, None)
            if held is None and page not in self.dirty:
                held = bytes(self.cache[page * PAGE : (page + 1) * PAGE])
            if held is not None:
                self.dirty[page] = held.ljust(PAGE, b"\0")

    @staticmethod
    def _in_range(pages: dict[int, bytes], offset: int, length: int | None) -> list[int]:
        end = None if length is None else offset + length
        return [p for p in pages if (p + 1) * PAGE > offset and (end is None or p * PAGE < end)]


class MemoryFile:
    """A handle (`StoreFile`) on a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, *, writable: bool = True) -> None:
        self.disk = disk
        self.writable = writable
        self.closed = False

    def pread(self, length: int, offset: int) -> bytes:
        with self.disk.lock:
            return bytes(memoryview(self.disk.cache)[offset : offset + length])

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._check()
        data = b"".join(buffers)
        self.disk.put(data, offset)
        self.disk.synced(offset, len(data))

    def write_aside(self, data: Buffer, offset: int) -> None:
        self.write_durable([data], offset)

    def write(self, data: Buffer, offset: int) -> None:
        self._check()
        self.disk.put(data, offset)

    def write_stage(self, data: Buffer, offset: int) -> None:
        self._check()
        self.disk.put(data, offset)

    def sync_stage(self) -> None:
        self._check()
        self.disk.synced()

    def sync(self) -> None:
        self._check()
        self.disk.synced()

    def allocate(self, offset: int, length: int) -> None:
        self._check()
        if offset + length > self.size():
            self.disk.resize(offset + length)

    def punch(self, offset: int, length: int) -> None:
        self._check()
        self.disk.zero(offset, length)

    def truncate(self, size: int) -> None:
        self._check()
        self.disk.resize(size)

    def size(self) -> int:
        with self.disk.lock:
            return len(self.disk.cache)

    def drop_cache(self, offset: int, length: int = 0) -> None:
        self.disk.drop_cache(offset, length or None)

    def holes(self, offset: int) -> int:
        return self.size()

    def replaced(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        assert not self.closed, "the engine used a file it had closed"
        assert self.writable, "the engine wrote to a file opened for reading"
