"""Stores on a `MemoryDisk`, for tests of the engine."""

import errno
import os
from collections.abc import Callable, Sequence

import trio

from commitfs.format.node import NO_ROOT
from commitfs.format.record import Record
from commitfs.store.file import StoreFile, WriteFailed
from commitfs.store.make import new_image
from commitfs.store.store import Store, Ticket
from commitfs.types import Buffer
from tests.support.memory_file import MemoryDisk, MemoryFile


class LimitedFile(MemoryFile):
    """A file on a disk that has room for `limit` bytes of it."""

    def __init__(self, disk: "LimitedDisk", *, writable: bool) -> None:
        super().__init__(disk, writable=writable)
        self.limited = disk

    def _room(self, end: int) -> None:
        if end > self.limited.limit:
            raise WriteFailed(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._room(offset + sum(map(len, buffers)))
        super().write_durable(buffers, offset)

    def write_aside(self, data: Buffer, offset: int) -> None:
        self._room(offset + len(data))
        super().write_durable([data], offset)

    def write_stage(self, data: Buffer, offset: int) -> None:
        self._room(offset + len(data))
        super().write_stage(data, offset)

    def allocate(self, offset: int, length: int) -> None:
        self._room(offset + length)
        super().allocate(offset, length)


class LimitedDisk(MemoryDisk):
    limit: int = 1 << 62


def opener(disk: MemoryDisk) -> Callable[[str, bool], StoreFile]:
    def open_(_path: str, writable: bool) -> StoreFile:
        if isinstance(disk, LimitedDisk):
            return LimitedFile(disk, writable=writable)
        return MemoryFile(disk, writable=writable)

    return open_


def disk(align: int = 8) -> MemoryDisk:
    """With a store that has no commit."""
    return MemoryDisk(new_image(align))


def limited_disk() -> LimitedDisk:
    return LimitedDisk(new_image(8))


def open_store(
    on: MemoryDisk, *, writable: bool = False, report: Callable[[str], None] = lambda message: None
) -> Store:
    return Store.open("memory", writable=writable, opener=opener(on), report=report)


def queue(store: Store, data: bytes = b"contents", *, time_ns: int = 0) -> Ticket:
    """A commit without a tree, placed and not written."""
    txn = store.begin(len(data))
    txn.add(data)
    return txn.finish(root=NO_ROOT, time_ns=time_ns)


def commit(store: Store, data: bytes = b"contents", *, time_ns: int = 0) -> Record:
    """The same, durable."""
    ticket = queue(store, data, time_ns=time_ns)
    store.flush()
    assert ticket.done
    return ticket.record


def filled(count: int, *, align: int = 8, size: int = 40) -> tuple[MemoryDisk, list[Record]]:
    """A disk with `count` commits at times 1000, 2000, ..., closed."""
    made = disk(align)
    store = open_store(made, writable=True)
    records = [commit(store, b"%04d" % n * (size // 4), time_ns=1000 * n) for n in range(1, count + 1)]
    store.close()
    return made, records


def ids(store: Store) -> list[int]:
    return [record.id for record in store.records()]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task or thread does, at most ten seconds."""
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.001)


def flip(on: MemoryDisk, offset: int, bit: int = 0) -> None:
    """Turn one bit over on the device."""
    on.cache[offset] ^= 1 << bit
