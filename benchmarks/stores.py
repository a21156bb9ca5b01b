"""Stores made and opened for the rows, in one place."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from commitfs.format.facts import Facts, encode_facts
from commitfs.format.node import NO_ROOT
from commitfs.native import crc32c
from commitfs.store.committer import GroupCommitter
from commitfs.store.file import StoreFile, open_file
from commitfs.store.store import Store
from commitfs.types import Buffer

__all__ = [
    "NO_ROOT",
    "CountingFile",
    "GroupCommitter",
    "Store",
    "fill_store",
    "new_store",
    "open_file",
    "open_store",
    "published_end",
    "repeat_head",
]

GROUP = 64
"""Commits written with one sync when a store is filled."""


@contextmanager
def new_store(path: Path) -> Iterator[Store]:
    """An empty store, open for writing."""
    Store.create(path)
    store = Store.open(path, writable=True)
    try:
        yield store
    finally:
        store.close()


def open_store(
    path: Path, *, writable: bool = False, opener: Callable[[Path, bool], StoreFile] = open_file
) -> Store:
    return Store.open(path, writable=writable, opener=opener)


def fill_store(path: Path, commits: int, data: bytes = b"x" * 64) -> None:
    """A store of `commits` commits of `data` without a tree, written in groups."""
    with new_store(path) as store:
        for i in range(commits):
            txn = store.begin()
            txn.add(data)
            txn.finish(root=NO_ROOT, time_ns=time.time_ns())
            if i % GROUP == GROUP - 1:
                store.flush()
        store.flush()


def repeat_head(path: Path, commits: int) -> None:
    """`commits` more commits of the newest tree of a store, each with facts that name no change."""
    store = Store.open(path, writable=True)
    try:
        assert store.head is not None
        for i in range(commits):
            now = time.time_ns()
            txn = store.begin()
            txn.add(encode_facts(Facts(now, 0, 0, b"", ()), crc32c))
            txn.finish(root=store.head.root, time_ns=now)
            if i % GROUP == GROUP - 1:
                store.flush()
        store.flush()
    finally:
        store.close()


def published_end(path: Path) -> int:
    """The published end of a store, which may be mounted meanwhile."""
    store = Store.open(path)
    try:
        return store.published_end
    finally:
        store.close()


class CountingFile:
    """A StoreFile that counts the reads asked of the file below."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self.writable = file.writable
        self.reads = 0
        self.bytes_read = 0

    def pread(self, length: int, offset: int) -> bytes:
        data = self._file.pread(length, offset)
        self.reads += 1
        self.bytes_read += len(data)
        return data

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._file.write_durable(buffers, offset)

    def write(self, data: Buffer, offset: int) -> None:
        self._file.write(data, offset)

    def write_stage(self, data: Buffer, offset: int) -> None:
        self._file.write_stage(data, offset)

    def sync_stage(self) -> None:
        self._file.sync_stage()

    def sync(self) -> None:
        self._file.sync()

    def allocate(self, offset: int, length: int) -> None:
        self._file.allocate(offset, length)

    def punch(self, offset: int, length: int) -> None:
        self._file.punch(offset, length)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def size(self) -> int:
        return self._file.size()

    def drop_cache(self, offset: int) -> None:
        self._file.drop_cache(offset)

    def holes(self, offset: int) -> int:
        return self._file.holes(offset)

    def replaced(self) -> bool:
        return self._file.replaced()

    def close(self) -> None:
        self._file.close()
