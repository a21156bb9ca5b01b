"""The real file below the store."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from commitfs.errors import LockedError
from commitfs.format.node import NO_ROOT
from commitfs.store.file import OverlappedFile, RealFile, StoreFile, WriteFailed, open_file
from commitfs.store.store import Store
from tests.support.stores import commit, ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "s.db"
    made.write_bytes(bytes(range(256)) * 64)
    return made


def opened(path: Path) -> RealFile:
    return open_file(str(path), True)


def test_is_what_the_store_asks_for(path: Path) -> None:
    file: StoreFile = opened(path)
    assert isinstance(file, OverlappedFile)
    file.close()
    file.close()


def test_reads_and_writes(path: Path) -> None:
    file = opened(path)
    assert file.pread(4, 254) == b"\xfe\xff\x00\x01"
    assert file.pread(100, file.size() - 3) == b"\xfd\xfe\xff"
    assert file.pread(1, 1 << 30) == b""
    file.write_durable([b"ab", bytearray(b"cd"), memoryview(b"ef")], 10)
    file.write_aside(b"gh", 16)
    file.write(b"ij", 18)
    file.sync()
    assert path.read_bytes()[9:21] == b"\x09abcdefghij\x14"
    file.close()


def test_writes_beside_the_caller(path: Path) -> None:
    file = opened(path)
    for n in range(3):
        file.begin_durable([b"abc", b"def"], n * 6)
        assert file.durable_fileno() >= 0
        file.end_durable()
    assert path.read_bytes()[:18] == b"abcdef" * 3
    file.close()


@pytest.mark.parametrize("size", [1, 512, 4096, 70_000, 1 << 20, (1 << 20) + 4096])
@pytest.mark.parametrize("offset", [4096, 4097])
def test_writes_stages_aligned_or_not(path: Path, size: int, offset: int) -> None:
    file = opened(path)
    data = os.urandom(size)
    file.write_stage(data, offset)
    file.sync_stage()
    assert file.pread(size, offset) == data
    assert path.read_bytes()[offset : offset + size] == data
    file.close()


def test_allocates_truncates_punches_and_finds_holes(path: Path) -> None:
    file = opened(path)
    file.allocate(16384, 1 << 20)
    assert file.size() == 16384 + (1 << 20)
    assert file.pread(100, 20000) == bytes(100)
    file.write_durable([b"x" * (1 << 20)], 16384)
    assert file.holes(0) == file.size()
    file.punch(65536, 65536)
    assert file.size() == 16384 + (1 << 20)
    assert file.pread(65536, 65536) == bytes(65536)
    assert file.holes(0) in (65536, file.size())
    file.truncate(100)
    assert file.size() == file.holes(0) == file.holes(1000) == 100
    file.close()


def test_no_room_is_told_from_other_failures(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    file = opened(path)
    try:
        with pytest.raises(WriteFailed) as caught:
            file.write_durable([b"x"], 1 << 20)
        assert caught.value.errno == errno.EFBIG
        with pytest.raises(WriteFailed):
            file.write_aside(b"x", 1 << 20)
        file.begin_durable([b"x"], 1 << 20)
        with pytest.raises(WriteFailed):
            file.end_durable()
        with pytest.raises(OSError, match="large"):
            file.allocate(1 << 20, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        file.close()
    reader = open_file(str(path), False)
    with pytest.raises(OSError, match="descriptor") as other:
        reader.write_durable([b"x"], 0)
    assert not isinstance(other.value, WriteFailed)
    reader.close()


def test_a_store_lives_within_a_file_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    Store.create(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, before[1]))
    try:
        store = Store.open(path, writable=True)

        def fill() -> None:
            while True:
                commit(store, bytes(100_000))

        with pytest.raises(OSError, match="large") as caught:
            fill()
        assert caught.value.errno == errno.EFBIG
        assert store.latched is None
        made = store.durable_id
        assert made >= 25
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert commit(store).id == store.durable_id
    store.close()
    assert ids(Store.open(path))[-1] == 1


def test_notices_that_it_was_replaced(path: Path) -> None:
    file = opened(path)
    assert not file.replaced()
    other = path.with_name("other")
    other.write_bytes(b"other")
    other.replace(path)
    assert file.replaced()
    file.write_aside(b"x", 0)
    file.write_stage(bytes(4096), 4096)
    assert path.read_bytes() == b"other", "what is written goes to the file that was opened"
    path.unlink()
    assert not file.replaced()
    file.close()


def test_does_not_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Store.create("s.db")
    store = Store.open("s.db", writable=True)
    reader = Store.open("s.db")
    monkeypatch.chdir("/")
    (tmp_path / "s.db").rename(tmp_path / "t.db")
    assert not reader.file.replaced()
    for _ in range(20):
        commit(store, bytes(100_000))
    txn = store.begin(6 << 20)
    for _ in range(6):
        txn.add(bytes(1 << 20))
    txn.finish(root=NO_ROOT, time_ns=0)
    store.close()
    assert reader.refresh()
    assert reader.durable_id == 21
    assert reader.path == str(tmp_path / "s.db")
    reader.close()


class TestLock:
    def test_names_the_owner(self, path: Path) -> None:
        owner = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"""
from commitfs.store.file import open_file
file = open_file({str(path)!r}, True)
open_file({str(path)!r}, False).close()
print("locked", flush=True)
input()
""",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"locked\n"
            with pytest.raises(LockedError, match="in use") as caught:
                opened(path)
            # The owner closed another descriptor of the file, which drops its classic lock, not the other.
            assert caught.value.pid == 0
            open_file(str(path), False).close()
        finally:
            owner.communicate(b"\n", timeout=20)
        opened(path).close()

    def test_of_a_killed_process_is_free(self, path: Path) -> None:
        owner = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"""
from commitfs.store.file import open_file
file = open_file({str(path)!r}, True)
print("locked", flush=True)
input()
""",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(LockedError, match=f"process {owner.pid}") as caught:
            opened(path)
        assert caught.value.pid == owner.pid
        owner.kill()
        owner.communicate(timeout=20)
        opened(path).close()

    def test_excludes_within_a_process(self, path: Path) -> None:
        file = opened(path)
        with pytest.raises(LockedError):
            opened(path)
        open_file(str(path), False).close()
        with pytest.raises(LockedError):
            opened(path)
        file.close()
        opened(path).close()
