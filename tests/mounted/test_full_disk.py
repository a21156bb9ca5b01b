"""P1 and P6 on a full disk: write says so, and nothing that was saved is lost.

A small ext4 of its own, in a file, holds the store.
"""

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.mounted.conftest import Mounts
from tests.support.acts import outcome
from tests.support.disks import loop_ext4, run
from tests.support.mounted import NO_TIMER, Mount

pytestmark = pytest.mark.mounted

IMAGE_BYTES = 24 << 20
BALLAST_BYTES = 6 << 20
PIECE = 128 << 10
FILE_BYTES = 200_000
"""Of the files that fill the disk; small enough to be kept in memory until they are closed."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The mountpoint of an ext4 filesystem of `IMAGE_BYTES`."""
    with loop_ext4(tmp_path, IMAGE_BYTES) as path:
        yield path


@pytest.fixture
def full(small_disk: Path, mounts: Mounts) -> Mount:
    """A mount whose store is on the small disk, with a ballast file beside it.  `mounts` ends first."""
    with (small_disk / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, BALLAST_BYTES)
    return mounts(NO_TIMER, store=small_disk / "s.db")


def make_room(full: Mount) -> None:
    (full.store.parent / "ballast").unlink()


def written(path: Path, data: bytes) -> str:
    """Make, write and close a file: ``ok``, or the call that failed and its error."""
    calls = "open", "write", "close"
    done = 0
    fd = -1
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        done = 1
        at = 0
        while at < len(data):
            at += os.write(fd, data[at : at + PIECE])
        done = 2
        os.close(fd)
    except OSError as error:
        if done == 1:
            outcome(lambda: os.close(fd))
        return f"{calls[done]} {errno.errorcode[error.errno or 0]}"
    return "ok"


def write_until_full(fd: int, data: bytes, piece: int = PIECE) -> int:
    """How much of `data` was accepted before the first write that was refused."""
    at = 0
    while at < len(data):
        try:
            at += os.write(fd, data[at : at + piece])
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return at
    pytest.fail("the disk is never full")


def fill(full: Mount) -> tuple[dict[str, bytes], list[str]]:
    """Save files until there is no room: those whose close succeeded, and names that were refused.  Where
    there is none for large ones there may be some for small ones: these follow."""
    kept: dict[str, bytes] = {}
    refused: list[str] = []
    for size in (FILE_BYTES, 4096):
        for number in range(10_000):
            name, data = f"{size}.{number}", os.urandom(size)
            answer = written(full / name, data)
            if answer != "ok":
                assert answer in ("write ENOSPC", "open ENOSPC"), answer
                refused.append(name)
                break
            kept[name] = data
        else:
            pytest.fail("the disk is never full")
    return kept, refused


def assert_kept(full: Mount, kept: dict[str, bytes]) -> None:
    for root in (full.path, full.newest()):
        for name, data in kept.items():
            assert (root / name).read_bytes() == data, root / name


def test_p6_a_full_disk(full: Mount, tmp_path: Path) -> None:
    kept, refused = fill(full)
    assert len(kept) > 20
    daemon = full.pid
    assert_kept(full, kept)

    # What ordinary programs make of it: the shell's cp fails, and leaves no file that was "saved".
    large = tmp_path / "large"
    large.write_bytes(os.urandom(2_000_000))
    copied = run("cp", large, full / "copy")
    assert copied.returncode != 0
    assert "No space left" in copied.stderr
    assert_kept(full, kept)

    # An overwrite that finds no room: the last good version stays in every commit.
    name = next(iter(kept))
    assert written(full / name, os.urandom(5_000_000)).endswith("ENOSPC")
    assert full.process is not None
    assert full.process.poll() is None
    assert full.pid == daemon

    # Removing works while it is full, also of what was just refused.
    for gone in [name, "copy", *refused, *list(kept)[1:5]]:
        kept.pop(gone, None)
        if (full / gone).exists():
            assert outcome(partial(os.unlink, full / gone)) == "ok"
    assert_kept(full, kept)
    assert not (full.newest() / name).exists()

    make_room(full)
    for number in range(3):
        data = os.urandom(FILE_BYTES)
        assert written(full / f"again{number}", data) == "ok"
        kept[f"again{number}"] = data
    shutil.copy(large, full / "copy")
    kept["copy"] = large.read_bytes()
    assert_kept(full, kept)
    assert full.process.poll() is None
    full.check()
    full.remount()
    assert_kept(full, kept)
    assert {path.name for path in full.path.iterdir()} == set(kept)
    full.check()


def test_p1_a_large_file_fills_the_disk(full: Mount, tmp_path: Path) -> None:
    """One file, most of it staged: write says so, what was accepted before is kept at its close."""
    data = os.urandom(IMAGE_BYTES)
    fd = os.open(full / "large", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        at = write_until_full(fd, data)
        assert at > 1 << 20
        assert os.fstat(fd).st_size == at
    finally:
        closed = outcome(lambda: os.close(fd))
    assert closed == "ok"
    assert_kept(full, {"large": data[:at]})
    assert outcome(lambda: os.mkdir(full / "d")) in ("ok", "ENOSPC")
    assert full.latest() > 1
    os.unlink(full / "large")
    make_room(full)
    assert written(full / "f", data[:FILE_BYTES]) == "ok"
    assert_kept(full, {"f": data[:FILE_BYTES]})
    full.check()


def use_up(full: Mount) -> None:
    """Leave the disk no block at all, what commitfs kept for itself in the store's file apart."""
    rest = full.store.parent / "rest"
    with rest.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            write_until_full(file.fileno(), bytes(IMAGE_BYTES), size)
    assert os.statvfs(full.store.parent).f_bavail == 0


def test_p6_no_block_is_left(full: Mount) -> None:
    """Removing works, unmounting and mounting too, and saving as soon as there is room."""
    kept, refused = fill(full)
    use_up(full)
    for gone in [*list(kept)[:6], *refused]:
        kept.pop(gone, None)
        if (full / gone).exists():
            assert outcome(partial(os.unlink, full / gone)) == "ok"
    assert_kept(full, kept)
    use_up(full)
    full.remount()
    assert {path.name for path in full.path.iterdir()} == set(kept)
    assert_kept(full, kept)
    gone = next(iter(kept))
    removed = outcome(partial(os.unlink, full / gone))
    assert removed in ("ok", "ENOSPC"), "without a block even a removal may have to wait"
    if removed == "ok":
        del kept[gone]
    assert written(full / "large", os.urandom(5_000_000)).endswith("ENOSPC")
    outcome(partial(os.unlink, full / "large"))
    (full.store.parent / "rest").unlink()
    make_room(full)
    data = os.urandom(FILE_BYTES)
    assert written(full / "again", data) == "ok"
    kept["again"] = data
    assert_kept(full, kept)
    full.remount()
    assert_kept(full, kept)
    full.check()


def test_p1_a_limit_of_file_size_is_a_full_disk(mounts: Mounts) -> None:
    """The daemon meets its RLIMIT_FSIZE: EFBIG, no SIGXFSZ; removing works, and saving once it is lifted."""
    fs = mounts(NO_TIMER)
    before = resource.prlimit(fs.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(fs.pid, resource.RLIMIT_FSIZE, (fs.store.stat().st_size + (3 << 20), before[1]))
    kept: dict[str, bytes] = {}
    for number in range(100):
        data = os.urandom(FILE_BYTES)
        answer = written(fs / str(number), data)
        if answer != "ok":
            break
        kept[str(number)] = data
    assert answer == "write EFBIG"
    assert len(kept) > 5
    assert fs.process is not None
    assert fs.process.poll() is None
    for gone in ("0", "1"):
        os.unlink(fs / gone)
        del kept[gone]
    assert_kept(fs, kept)
    resource.prlimit(fs.pid, resource.RLIMIT_FSIZE, before)
    kept["again"] = os.urandom(FILE_BYTES)
    assert written(fs / "again", kept["again"]) == "ok"
    assert_kept(fs, kept)
    fs.remount()
    assert_kept(fs, kept)
    fs.check()
