"""A store file whose writes wait at gates, so that a test decides what happens while one is under way."""

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from commitfs.types import Buffer
from commitfs.vfs.content import SPILL_BYTES
from commitfs.vfs.vfs import Vfs
from tests.support.faulty import reopened
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import until
from tests.support.world import new, open_vfs

LARGE = bytes(range(256)) * ((3 * SPILL_BYTES - 100_000) // 256)
"""Two puts of it are accepted at once; what is left in memory then is no reason to wait."""


class Gate:
    """While it is shut, lets writes through one by one, each with the outcome given."""

    def __init__(self, *, shut: bool = True) -> None:
        self.shut = shut
        self.open = threading.Semaphore(0)
        self.outcomes: list[OSError | None] = []
        self.groups: list[tuple[int, int]] = []
        """(offset, length) of all that have come to it."""

    def let(self, error: OSError | None = None) -> None:
        self.outcomes.append(error)
        self.open.release()

    def enter(self, offset: int, length: int) -> None:
        """Called in the thread that writes."""
        self.groups.append((offset, length))
        if self.shut:
            assert self.open.acquire(timeout=20)
            error = self.outcomes.pop(0)
            if error is not None:
                raise error

    async def reached(self, count: int) -> None:
        """Return when `count` writes in all have come to it."""
        await until(lambda: len(self.groups) >= count)

    def open_wide(self) -> None:
        """Let who waits through, and everybody from now on."""
        self.shut = False
        self.let()


class GatedFile(MemoryFile):
    def __init__(self, disk: MemoryDisk, gate: Gate, stages: Gate | None = None) -> None:
        """`gate` is for groups of commits, `stages` for the data of stages."""
        super().__init__(disk)
        self.gate = gate
        self.stages = stages or Gate(shut=False)

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.gate.enter(offset, sum(map(len, buffers)))
        super().write_durable(buffers, offset)

    def write_aside(self, data: Buffer, offset: int) -> None:
        self.disk.put(data, offset)

    def write_stage(self, data: Buffer, offset: int) -> None:
        self.stages.enter(offset, len(data))
        super().write_stage(data, offset)


class OverlappedGatedFile(GatedFile):
    """Its writes of groups are begun, waited for and ended, as a real file's are."""

    def __init__(self, disk: MemoryDisk, gate: Gate, stages: Gate | None = None) -> None:
        super().__init__(disk, gate, stages)
        self._done = os.eventfd(0)
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def begin_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        def write() -> None:
            try:
                self.write_durable(buffers, offset)
            except OSError as error:
                self._error = error
            os.eventfd_write(self._done, 1)

        self._thread = threading.Thread(target=write)
        self._thread.start()

    def durable_fileno(self) -> int:
        return self._done

    def end_durable(self) -> None:
        assert self._thread is not None
        self._thread.join()
        os.eventfd_read(self._done)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        super().close()
        os.close(self._done)


class GatedWorld:
    """A vfs whose commits and stages a test holds up; the gates are open at first."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.commits = Gate(shut=False)
        self.stages = Gate(shut=False)
        self.vfs: Vfs
        self.file = OverlappedGatedFile(disk, self.commits, self.stages)

    def durable(self) -> dict[bytes, bytes | None]:
        """Contents by path (None: a directory) of the newest commit, were the power to fail now."""
        with self.disk.lock:
            left = MemoryDisk(bytes(self.disk.cache))
            left.dirty = dict(self.disk.dirty)
        left.lose()
        return reopened(left)


@asynccontextmanager
async def gated_vfs(path: Path) -> AsyncIterator[GatedWorld]:
    """The store at `path`, in memory; closed as at unmount."""
    world = GatedWorld(MemoryDisk(path.read_bytes()))
    async with open_vfs(path, opener=lambda _path, _writable: world.file, inline=False) as world.vfs:
        try:
            yield world
        finally:
            world.commits.open_wide()
            world.stages.open_wide()


@asynccontextmanager
async def waiting(gate: Gate, act: Awaitable[object]) -> AsyncIterator[list[object]]:
    """`act` has come to `gate` and waits there; its result, once it is there, in the list.  At the end of
    the block the gate is opened."""
    result: list[object] = []

    async def run() -> None:
        result.append(await act)

    before = len(gate.groups)
    async with trio.open_nursery() as nursery:
        gate.shut = True
        nursery.start_soon(run)
        await gate.reached(before + 1)
        assert not result
        yield result
        gate.open_wide()


async def written(
    world: GatedWorld, name: bytes, data: bytes = b"x", flags: int = os.O_RDWR
) -> tuple[int, int]:
    """(handle, inode) of a file made and written, at no commit point yet."""
    fh, ino = await new(world.vfs, name, flags)
    await world.vfs.write(fh, 0, data)
    return fh, ino
