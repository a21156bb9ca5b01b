"""Durable writes: what is written, what is asked of the kernel, what comes of its refusals."""

import errno
import mmap
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from commitfs.native import NativeCommitter, SyncFailed, write_all, write_durable
from commitfs.types import Buffer
from tests.support.interposer import build, variables

Write = Callable[[int, Sequence[Buffer], int], None]

# ------------------------------------------------------------------ through the real kernel


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("write", [write_durable, write_all])
@pytest.mark.parametrize(
    "pieces",
    [
        [b"abc"],
        [bytearray(b"abc")],
        [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]],
        [b"", b"a", b""],
        [b""],
        [],
        [b"x" * 100_000, b"", b"y" * 100_000],
        [memoryview(b"z" * 300_000)],
        [b"q" * 400] * 3000,
    ],
    ids=["bytes", "bytearray", "kinds", "empty", "nothing", "none", "long", "view", "more than IOV_MAX"],
)
def test_writes_the_pieces_one_behind_the_other(fd: int, write: Write, pieces: list[bytes]) -> None:
    write(fd, pieces, 5)
    whole = b"".join(pieces)
    assert os.pread(fd, 2_000_000, 0) == (b"\0" * 5 + whole if whole else b"")


@pytest.mark.parametrize("write", [write_durable, write_all])
def test_an_error_is_an_oserror_and_lets_go_of_the_buffers(write: Write) -> None:
    with mmap.mmap(-1, 4096) as area, memoryview(area) as whole, whole[:100] as part:
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            write(-1, [part, part], 0)
        assert caught.value.errno == errno.EBADF
        assert not isinstance(caught.value, SyncFailed)
        # Leaving the block releases the view, which fails while anything holds it.


_OVER_THE_LIMIT = """
import os, resource, signal, sys
from commitfs.native import write_durable
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
try:
    write_durable(fd, [b"a" * 600, b"b" * 600], 0)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def test_a_write_over_the_limit_of_file_sizes_is_efbig(tmp_path: Path) -> None:
    """Part of it is written first: a short write, then the error."""
    worker = [sys.executable, "-c", _OVER_THE_LIMIT, str(tmp_path / "file")]
    done = subprocess.run(worker, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == f"OSError {errno.EFBIG}\n"
    assert (tmp_path / "file").read_bytes() == b"a" * 600 + b"b" * 400


# ------------------------------------------------------------------ the committer


@pytest.fixture
def committer() -> Iterator[NativeCommitter]:
    committer = NativeCommitter()
    yield committer
    committer.close()


def _readable(committer: NativeCommitter, seconds: float) -> bool:
    return bool(select.select([committer.fileno()], [], [], seconds)[0])


def test_committer_writes_and_signals(fd: int, committer: NativeCommitter) -> None:
    for turn in range(20):
        assert not _readable(committer, 0)
        committer.submit(fd, [b"turn", bytearray(b"%d" % turn)], 10 * turn)
        assert _readable(committer, 30)
        committer.finish()
    assert os.pread(fd, 6, 190) == b"turn19"


def test_committer_finish_waits(fd: int, committer: NativeCommitter) -> None:
    committer.submit(fd, [b"x" * (8 << 20)], 0)
    committer.finish()
    assert os.fstat(fd).st_size == 8 << 20
    assert not _readable(committer, 0)


def test_committer_gives_the_error_to_finish_and_goes_on(fd: int, committer: NativeCommitter) -> None:
    area = bytearray(b"abc")
    committer.submit(-1, [area], 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        committer.finish()
    area.clear()  # fails while the committer holds it
    committer.submit(fd, [b"good"], 0)
    committer.finish()
    assert os.pread(fd, 9, 0) == b"good"


def test_committer_takes_one_write_at_a_time(fd: int, committer: NativeCommitter) -> None:
    with pytest.raises(RuntimeError, match="no write"):
        committer.finish()
    committer.submit(fd, [b"one"], 0)
    area = bytearray(b"two")
    with pytest.raises(RuntimeError, match="under way"):
        committer.submit(fd, [area], 100)
    area.clear()
    committer.finish()
    assert os.fstat(fd).st_size == 3


def test_committer_closes_with_a_write_under_way(fd: int) -> None:
    committer = NativeCommitter()
    area = bytearray(b"last" * 100_000)
    event = committer.fileno()
    committer.submit(fd, [area], 0)
    committer.close()
    area.clear()
    assert os.fstat(fd).st_size == 400_000
    committer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(event)
    for call in (committer.fileno, lambda: committer.submit(fd, [b""], 0)):
        with pytest.raises(ValueError, match="closed"):
            call()


# ------------------------------------------------------------------ with a kernel that refuses

_WORKER = """
import os, sys
from commitfs.native import NativeCommitter, SyncFailed, sync, write_all, write_durable
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
def beside(*write):
    committer = NativeCommitter()
    committer.submit(*write)
    committer.finish()
def synced(*write):
    write_all(*write)
    sync(fd)
call = {"durable": write_durable, "all": write_all, "beside": beside, "synced": synced}[sys.argv[2]]
try:
    # Two pieces that are too long to be joined, or one.
    call(fd, [b"a" * 100_000, b"b" * 100_000] if sys.argv[3] == "two" else [b"a" * 100], 1000)
except OSError as error:
    print(type(error).__name__, error.errno)
else:
    print("done")
"""


@pytest.fixture(scope="module")
def interposer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("interpose"))


DSYNC = "write 100 at 1000 dsync"
PLAIN = "write 100 at 1000"


@pytest.mark.parametrize(
    ("call", "size", "script", "outcome", "calls"),
    [
        ("durable", "one", "", "done", [DSYNC]),
        ("all", "one", "", "done", [PLAIN]),
        (
            "durable",
            "one",
            "short:30 short:1",
            "done",
            [DSYNC, "write 70 at 1030 dsync", "write 69 at 1031 dsync"],
        ),
        ("durable", "one", "EINTR EINTR", "done", [DSYNC] * 3),
        ("all", "one", "EINTR short:99", "done", [PLAIN, PLAIN, "write 1 at 1099"]),
        ("durable", "one", "short:0", "OSError EIO", [DSYNC]),
        ("durable", "one", "EOPNOTSUPP", "done", [DSYNC, PLAIN, "sync"]),
        ("durable", "one", "ENOSYS", "done", [DSYNC, PLAIN, "sync"]),
        ("durable", "one", "EINVAL", "done", [DSYNC, PLAIN, "sync"]),
        ("durable", "one", "EINVAL EINVAL", "OSError EINVAL", [DSYNC, PLAIN]),
        (
            "durable",
            "one",
            "short:60 EINVAL",
            "done",
            [DSYNC, "write 40 at 1060 dsync", "write 40 at 1060", "sync"],
        ),
        ("durable", "one", "EIO", "OSError EIO", [DSYNC]),
        ("durable", "one", "ENOSPC", "OSError ENOSPC", [DSYNC]),
        ("durable", "one", "short:10 EDQUOT", "OSError EDQUOT", [DSYNC, "write 90 at 1010 dsync"]),
        ("durable", "one", "ENOSYS ok EIO", "SyncFailed EIO", [DSYNC, PLAIN, "sync"]),
        ("durable", "one", "ENOSYS ok ENOSPC", "SyncFailed ENOSPC", [DSYNC, PLAIN, "sync"]),
        ("durable", "one", "ENOSYS ok EINTR", "SyncFailed EINTR", [DSYNC, PLAIN, "sync"]),
        ("durable", "one", "ENOSYS ENOSPC", "OSError ENOSPC", [DSYNC, PLAIN]),
        ("synced", "one", "EINTR", "done", [PLAIN, PLAIN, "sync"]),
        ("synced", "one", "ok EIO", "SyncFailed EIO", [PLAIN, "sync"]),
        ("synced", "one", "ok ENOSPC", "SyncFailed ENOSPC", [PLAIN, "sync"]),
        ("synced", "one", "ok EINTR", "SyncFailed EINTR", [PLAIN, "sync"]),
        (
            "beside",
            "one",
            "short:30 EINTR",
            "done",
            [DSYNC, "write 70 at 1030 dsync", "write 70 at 1030 dsync"],
        ),
        ("beside", "one", "EIO", "OSError EIO", [DSYNC]),
        ("beside", "one", "EDQUOT", "OSError EDQUOT", [DSYNC]),
        ("beside", "one", "ENOSYS ok EINTR", "SyncFailed EINTR", [DSYNC, PLAIN, "sync"]),
        (
            "durable",
            "two",
            "short:100000 short:50000 short:1",
            "done",
            [
                "write 200000 at 1000 dsync",
                "write 100000 at 101000 dsync",
                "write 50000 at 151000 dsync",
                "write 49999 at 151001 dsync",
            ],
        ),
        (
            "durable",
            "two",
            "short:100001 EOPNOTSUPP short:7",
            "done",
            [
                "write 200000 at 1000 dsync",
                "write 99999 at 101001 dsync",
                "write 99999 at 101001",
                "write 99992 at 101008",
                "sync",
            ],
        ),
    ],
)
def test_refusals(
    interposer: Path, tmp_path: Path, call: str, size: str, script: str, outcome: str, calls: list[str]
) -> None:
    """Short writes and EINTR go on; a refused flag falls back; a failed sync is never tried again."""
    words = [str(getattr(errno, word)) if word.startswith("E") else word for word in script.split()]
    (tmp_path / "script").write_text(" ".join(words))
    environment = {**os.environ, **variables(interposer, tmp_path / "script", tmp_path / "calls")}
    done = subprocess.run(
        [sys.executable, "-c", _WORKER, tmp_path / "file", call, size],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    kind, _, code = done.stdout.strip().partition(" ")
    assert (f"{kind} {errno.errorcode[int(code)]}" if code else kind) == outcome
    assert (tmp_path / "calls").read_text().splitlines() == calls
    if outcome == "done":
        whole = b"a" * 100_000 + b"b" * 100_000 if size == "two" else b"a" * 100
        assert (tmp_path / "file").read_bytes() == b"\0" * 1000 + whole
