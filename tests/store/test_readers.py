"""Readers in other processes beside the one writer (P8)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commitfs.errors import CorruptError, FormatError
from commitfs.native import crc32c
from commitfs.store.store import Store

WRITER = """
import sys
from commitfs.format.node import NO_ROOT
from commitfs.store.store import Store
store = Store.open(sys.argv[1], writable=True)
for line in sys.stdin:
    for n in range(int(line)):
        txn = store.begin(3000)
        txn.add((b"%08d" % int(txn.id)) * 300)
        txn.finish(root=NO_ROOT, time_ns=int(txn.id))
        if n % 3 == 0:
            store.flush()
    store.flush()
    print(store.durable_id, flush=True)
"""


class Writer:
    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, commits: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{commits}\n")
        self.process.stdin.flush()

    def done(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_exc: object) -> None:
        """Ends it as kill -9 does."""
        self.process.kill()
        self.process.communicate(timeout=30)

    def end(self) -> None:
        self.process.communicate(timeout=30)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Store.create(tmp_path / "s.db")
    return tmp_path / "s.db"


def check(store: Store, commit_id: int) -> None:
    record = store.record(commit_id)
    assert record.time_ns == commit_id
    data = store.bytes_of(record)
    assert data == (b"%08d" % commit_id) * 300
    assert crc32c(data) == record.bytes_crc


def test_follow_while_it_writes(path: Path) -> None:
    readers = [Store.open(path) for _ in range(3)]
    with Writer(path) as writer:
        writer.start(600)
        seen = 0
        while seen < 600:
            for reader in readers:
                before = reader.durable_id
                reader.refresh()
                assert reader.durable_id >= before
                if reader.durable_id:
                    check(reader, reader.durable_id)
                    check(reader, max(reader.durable_id // 2, 1))
            seen = min(reader.durable_id for reader in readers)
            fresh = Store.open(path)
            assert fresh.durable_id >= seen
            fresh.close()
            assert writer.process.poll() is None
        assert writer.done() == 600
        for reader in readers:
            for commit_id in range(1, 601):
                check(reader, commit_id)
            reader.close()


def test_after_it_was_killed_and_another_went_on(path: Path) -> None:
    with Writer(path) as writer:
        writer.start(1)
        total = writer.done()
    reader = Store.open(path)
    for _ in range(3):
        with Writer(path) as writer:
            writer.start(50)
            total = writer.done()
            writer.start(100_000)
            while not reader.refresh() or reader.durable_id < total + 20:
                check(reader, max(reader.durable_id, 1))
        reader.refresh()
        again = Store.open(path, writable=True)
        assert again.writable
        assert again.durable_id >= total + 20
        again.close()
        reader.refresh()
        assert reader.durable_id == again.durable_id
        check(reader, reader.durable_id)
        total = reader.durable_id
    reader.close()


def test_another_file_in_its_place_is_followed_only_if_it_is_a_store(path: Path, tmp_path: Path) -> None:
    with Writer(path) as writer:
        writer.start(3)
        writer.done()
        writer.end()
    reader = Store.open(path)
    (tmp_path / "other").write_bytes(b"no store" * 2000)
    (tmp_path / "other").replace(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FormatError):
            reader.refresh()
        for commit_id in (1, 2, 3):
            check(reader, commit_id)
    assert len(os.listdir("/proc/self/fd")) == before
    Store.create(tmp_path / "other")
    (tmp_path / "other").replace(path)
    with Writer(path) as writer:
        writer.start(7)
        writer.done()
        writer.end()
    assert reader.refresh()
    check(reader, 7)
    reader.close()


def test_what_they_read_is_checked(path: Path) -> None:
    with Writer(path) as writer:
        writer.start(5)
        writer.done()
        writer.end()
    reader = Store.open(path)
    record = reader.record(3)
    with path.open("r+b") as file:
        file.seek(record.bytes_offset + 7)
        file.write(b"!")
    with pytest.raises(CorruptError, match=str(record.bytes_offset)):
        reader.read_checked(record.bytes_offset, record.length, record.bytes_crc)
    reader.close()
