"""Stores made and opened for the rows, in one place."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from commitfs.format.facts import Facts, encode_facts
from commitfs.format.node import NO_ROOT
from commitfs.native import crc32c
from commitfs.store.committer import GroupCommitter
from commitfs.store.file import StoreFile, open_file
from commitfs.store.make import make_file, new_image
from commitfs.store.puretre2 import EarlierWriter
from commitfs.store.store import Store

__all__ = [
    "NO_ROOT",
    "EarlierWriter",
    "GroupCommitter",
    "Store",
    "count_reads",
    "fill_store",
    "new_earlier_store",
    "new_store",
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


def new_earlier_store(path: Path) -> None:
    """An empty store of the format before records."""
    make_file(str(path), new_image(8, earlier=True))


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
    """Stands for a StoreFile and counts the reads asked of it."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self.reads = 0
        self.bytes_read = 0

    def pread(self, length: int, offset: int) -> bytes:
        data = self._file.pread(length, offset)
        self.reads += 1
        self.bytes_read += len(data)
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def count_reads(path: Path, writable: bool) -> tuple[int, int]:
    """How many reads an open makes, and of how many bytes."""
    files: list[CountingFile] = []

    def opener(name: str, writable: bool) -> StoreFile:
        files.append(CountingFile(open_file(name, writable)))
        return cast(StoreFile, files[-1])

    Store.open(path, writable=writable, opener=opener).close()
    return sum(file.reads for file in files), sum(file.bytes_read for file in files)
