"""Faults at a chosen call of a store file: errors, short reads, and syncs that lose their pages."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NoReturn

from commitfs.native import SyncFailed
from commitfs.store.file import WriteFailed
from commitfs.types import Buffer
from tests.support.crash_file import CrashFile

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Kind(Enum):
    ERROR = auto()
    """The call fails with `errno` and has done nothing, or half of what it was to write."""
    LOST = auto()
    """A sync fails with `errno`; all it was to write is clean now and not on the device."""
    HALF_LOST = auto()
    """The same, but the first half of the range did reach the device."""
    SHORT = auto()
    """A read returns half of what was asked for."""


@dataclass
class Faults:
    """Which call fails.  `calls` counts those whose name is in `names` (all of them if empty), over
    every handle that shares this object; call number `at` (1 for the first; 0: none) fails, and with
    `lasting` every one after it."""

    kind: Kind = Kind.ERROR
    errno: int = errno.EIO
    at: int = 0
    names: frozenset[str] = frozenset()
    lasting: bool = False
    calls: int = 0
    hit: list[str] = field(default_factory=list)

    def strikes(self, name: str) -> bool:
        if self.names and name not in self.names:
            return False
        self.calls += 1
        struck = self.at > 0 and (self.calls >= self.at if self.lasting else self.calls == self.at)
        if struck:
            self.hit.append(name)
        return struck

    def heal(self) -> None:
        self.at = 0

    def error(self, *, write: bool = False, sync: bool = False) -> OSError:
        made = WriteFailed if write and self.errno in NO_SPACE else SyncFailed if sync else OSError
        return made(self.errno, os.strerror(self.errno))


WRITES = frozenset({"write_durable", "write_aside", "write", "write_stage", "allocate", "truncate"})
SYNCS = frozenset({"write_durable", "write_aside", "sync", "sync_stage"})
READS = frozenset({"pread"})
LOOKS = frozenset({"size", "drop_cache", "holes", "replaced"})
"""What is asked of a file besides its bytes."""


class FailingFile:
    """A `StoreFile` over a `CrashFile` with `faults`.  What fails is recorded as it happened."""

    def __init__(self, inner: CrashFile, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self.writable = inner.writable

    def pread(self, length: int, offset: int) -> bytes:
        if self.faults.strikes("pread"):
            if self.faults.kind is Kind.SHORT:
                return self.inner.pread(length // 2, offset)
            raise self.faults.error()
        return self.inner.pread(length, offset)

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self.faults.strikes("write_durable"):
            self._fail_durable(b"".join(buffers), offset)
        self.inner.write_durable(buffers, offset)

    def write_aside(self, data: Buffer, offset: int) -> None:
        if self.faults.strikes("write_aside"):
            self._fail_durable(bytes(data), offset)
        self.inner.write_aside(data, offset)

    def write(self, data: Buffer, offset: int) -> None:
        if self.faults.strikes("write"):
            self.inner.write(bytes(data)[: len(data) // 2], offset)
            raise self.faults.error(write=True)
        self.inner.write(data, offset)

    def write_stage(self, data: Buffer, offset: int) -> None:
        if self.faults.strikes("write_stage"):
            self.inner.write_stage(bytes(data)[: len(data) // 8192 * 4096], offset)
            raise self.faults.error(write=True)
        self.inner.write_stage(data, offset)

    def sync_stage(self) -> None:
        self._sync("sync_stage", self.inner.sync_stage)

    def sync(self) -> None:
        self._sync("sync", self.inner.sync)

    def allocate(self, offset: int, length: int) -> None:
        if self.faults.strikes("allocate"):
            raise self.faults.error(write=True)
        self.inner.allocate(offset, length)

    def punch(self, offset: int, length: int) -> None:
        if self.faults.strikes("punch"):
            raise self.faults.error()
        self.inner.punch(offset, length)

    def truncate(self, size: int) -> None:
        if self.faults.strikes("truncate"):
            raise self.faults.error(write=True)
        self.inner.truncate(size)

    def size(self) -> int:
        self._look("size")
        return self.inner.size()

    def drop_cache(self, offset: int, length: int = 0) -> None:
        self._look("drop_cache")
        self.inner.drop_cache(offset, length)

    def holes(self, offset: int) -> int:
        self._look("holes")
        return self.inner.holes(offset)

    def replaced(self) -> bool:
        self._look("replaced")
        return self.inner.replaced()

    def close(self) -> None:
        self.inner.close()

    def _look(self, name: str) -> None:
        if self.faults.strikes(name):
            raise self.faults.error()

    def _fail_durable(self, data: bytes, offset: int) -> NoReturn:
        if self.faults.kind is Kind.ERROR:
            self.inner.write(data[: len(data) // 2], offset)
            raise self.faults.error(write=True)
        self.inner.write(data, offset)
        self._lose(offset, len(data))
        raise self.faults.error(sync=True)

    def _sync(self, name: str, sync: Callable[[], None]) -> None:
        if not self.faults.strikes(name):
            sync()
            return
        if self.faults.kind in (Kind.LOST, Kind.HALF_LOST):
            self._lose(0, None)
        raise self.faults.error(sync=True)

    def _lose(self, offset: int, length: int | None) -> None:
        half = (self.inner.size() if length is None else length) // 2
        self.inner.lose(offset, length, reached=half if self.faults.kind is Kind.HALF_LOST else 0)


def failing_opener(
    opener: Callable[[object, bool], CrashFile], faults: Faults
) -> Callable[[object, bool], FailingFile]:
    """An opener for `Store.open` whose files share `faults`."""

    def open_failing_file(path: object, writable: bool) -> FailingFile:
        return FailingFile(opener(path, writable), faults)

    return open_failing_file
