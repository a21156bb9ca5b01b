"""The recorder: every change made to a store file, every sync and every acknowledgement, in order.

`RecordingFile` wraps any `StoreFile`; `CrashFile` is one over memory.  `crash_states` turns what
they recorded into the files a crash could have left behind.  A recorder that misses a call invents
or hides losses, so tests/store/test_recorder.py compares it with what strace saw.

An operation is recorded before it is made (a crash in the middle of it leaves any part of it), a
sync after it returned, with the number of operations there were when it began: it covers no more.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from commitfs.store.file import RealFile, StoreFile
from commitfs.types import Buffer
from tests.support.memory_file import MemoryDisk, MemoryFile


@dataclass(frozen=True, slots=True)
class Write:
    """`data` at `offset`, not synced by itself.  `stage`: through the stage descriptor."""

    offset: int
    data: bytes
    stage: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """The file is cut at, or extended with zeros to, `size`."""

    size: int


@dataclass(frozen=True, slots=True)
class Allocate:
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Punch:
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class SyncRange:
    """The operations before number `upto` that touch the range are durable."""

    offset: int
    length: int
    upto: int


@dataclass(frozen=True, slots=True)
class Sync:
    """The operations before number `upto` are durable; of a stage sync, the stage writes only."""

    upto: int
    stage: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A sync of a range failed: no later sync covers what was written to it before `upto`."""

    offset: int
    length: int
    upto: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The engine said that commit `commit` and all before it are durable."""

    commit: int


@dataclass(frozen=True, slots=True)
class Placed:
    """From here on commit `commit` may be found after a crash (its record may be written)."""

    commit: int


Op: TypeAlias = Write | Resize | Allocate | Punch | SyncRange | Sync | Lost | Ack | Placed


@dataclass
class Trace:
    """`base` is the file, all of it durable, before the first operation."""

    base: bytes
    ops: list[Op] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, op: Op) -> None:
        with self._lock:
            self.ops.append(op)

    def now(self) -> int:
        return len(self.ops)

    def ack(self, commit: int) -> None:
        self.add(Ack(commit))

    def placed(self, commit: int) -> None:
        self.add(Placed(commit))

    def replay(self) -> bytes:
        """The file when every operation has been made."""
        image = bytearray(self.base)
        for op in self.ops:
            make(op, image)
        return bytes(image)


def make(op: Op, image: bytearray) -> None:
    """Do to a file what the operation does to it, as whoever reads it meanwhile sees it."""
    match op:
        case Write(offset, data):
            if offset > len(image):
                image.extend(bytes(offset - len(image)))
            image[offset : offset + len(data)] = data
        case Resize(size):
            del image[size:]
            image.extend(bytes(size - len(image)))
        case Allocate(offset, length):
            image.extend(bytes(max(0, offset + length - len(image))))
        case Punch(offset, length):
            end = min(offset + length, len(image))
            if end > offset:
                image[offset:end] = bytes(end - offset)
        case _:
            pass


class RecordingFile:
    """A `StoreFile` that passes everything on to `inner` and keeps it in `trace`."""

    def __init__(self, inner: StoreFile, trace: Trace) -> None:
        self.inner = inner
        self.trace = trace
        self.writable = inner.writable

    def pread(self, length: int, offset: int) -> bytes:
        return self.inner.pread(length, offset)

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        self._record_write(data, offset, stage=False)
        upto = self.trace.now()
        self.inner.write_durable(buffers, offset)
        self.trace.add(SyncRange(offset, len(data), upto))

    def write_aside(self, data: Buffer, offset: int) -> None:
        self._record_write(bytes(data), offset, stage=False)
        upto = self.trace.now()
        self.inner.write_aside(data, offset)
        self.trace.add(SyncRange(offset, len(data), upto))

    def write(self, data: Buffer, offset: int) -> None:
        self._record_write(bytes(data), offset, stage=False)
        self.inner.write(data, offset)

    def write_stage(self, data: Buffer, offset: int) -> None:
        self._record_write(bytes(data), offset, stage=True)
        self.inner.write_stage(data, offset)

    def sync_stage(self) -> None:
        upto = self.trace.now()
        self.inner.sync_stage()
        self.trace.add(Sync(upto, stage=True))

    def sync(self) -> None:
        upto = self.trace.now()
        self.inner.sync()
        self.trace.add(Sync(upto))

    def allocate(self, offset: int, length: int) -> None:
        self.trace.add(Allocate(offset, length))
        self.inner.allocate(offset, length)

    def punch(self, offset: int, length: int) -> None:
        self.trace.add(Punch(offset, length))
        self.inner.punch(offset, length)

    def truncate(self, size: int) -> None:
        self.trace.add(Resize(size))
        self.inner.truncate(size)

    def size(self) -> int:
        return self.inner.size()

    def drop_cache(self, offset: int, length: int = 0) -> None:
        self.inner.drop_cache(offset, length)

    def holes(self, offset: int) -> int:
        return self.inner.holes(offset)

    def replaced(self) -> bool:
        return self.inner.replaced()

    def close(self) -> None:
        self.inner.close()

    def _record_write(self, data: bytes, offset: int, *, stage: bool) -> None:
        self.trace.add(Write(offset, data, stage))


class RecordingRealFile(RecordingFile):
    """One over a file on disk, whose native thread does durable writes beside the caller (`OverlappedFile`).

    Such a write is recorded when it is begun, and counts as durable when its end is taken note of: later
    than it was, so that no crash is left out.
    """

    def __init__(self, inner: RealFile, trace: Trace) -> None:
        super().__init__(inner, trace)
        self.real = inner
        self._begun: tuple[Sequence[Buffer], bytes, int, int] | None = None
        self.beside = 0
        """How many durable writes the native thread did."""

    def begin_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        assert self._begun is None, "a write is under way"
        data = b"".join(buffers)
        self._record_write(data, offset, stage=False)
        upto = self.trace.now()
        self.real.begin_durable(buffers, offset)
        self._begun = buffers, data, offset, upto

    def durable_fileno(self) -> int:
        return self.real.durable_fileno()

    def end_durable(self) -> None:
        assert self._begun is not None, "no write was begun"
        (buffers, data, offset, upto), self._begun = self._begun, None
        self.real.end_durable()
        assert b"".join(buffers) == data, "the engine changed what it was having written"
        self.trace.add(SyncRange(offset, len(data), upto))
        self.beside += 1


class CrashFile(RecordingFile):
    """A recording handle on a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, trace: Trace, *, writable: bool = True) -> None:
        super().__init__(MemoryFile(disk, writable=writable), trace)
        self.disk = disk

    def lose(self, offset: int = 0, length: int | None = None, *, reached: int = 0) -> None:
        """Say that a sync of a range, of everything by default, failed: its pages are clean now.

        The device has the first `reached` bytes of the range.  After a crash, which of it the device
        has is open.
        """
        if reached:
            self.disk.synced(offset, reached)
        self.disk.lose(offset, length)
        self.trace.add(Lost(offset, (1 << 62) if length is None else length, self.trace.now()))

    def _record_write(self, data: bytes, offset: int, *, stage: bool) -> None:
        # Writing into a page whose loss went unseen makes the whole page dirty again.
        for start, cached in self.disk.lost_pages(offset, len(data)):
            self.trace.add(Write(start, cached, stage))
        super()._record_write(data, offset, stage=stage)


def crash_opener(disk: MemoryDisk, trace: Trace) -> Callable[[object, bool], CrashFile]:
    """An opener for `Store.open`: the path it is given does not matter."""

    def open_crash_file(path: object, writable: bool) -> CrashFile:
        return CrashFile(disk, trace, writable=writable)

    return open_crash_file


def memory_opener(disk: MemoryDisk) -> Callable[[object, bool], MemoryFile]:
    """An opener for `Store.open` that records nothing."""

    def open_memory_file(path: object, writable: bool) -> MemoryFile:
        return MemoryFile(disk, writable=writable)

    return open_memory_file
