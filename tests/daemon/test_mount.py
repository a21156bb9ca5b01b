"""The life of a mount, on real mounts: what is durable when, and what is left behind."""

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitfs.daemon.mountinfo import Mount, mounted_at
from commitfs.daemon.preflight import is_dead
from commitfs.daemon.umount import umount
from commitfs.errors import CommitfsError
from commitfs.store.store import Store
from commitfs.vfs.snapshot import Snapshot
from tests.cli.test_process import commitfs, environment

pytestmark = pytest.mark.mounted

PATCHED = """
import os, sys, trio
from commitfs.cli.app import run
import commitfs.daemon.mount, commitfs.vfs.vfs, pyfuse3
{patch}
sys.exit(run({args!r}))
"""


class Place:
    """A store and a mountpoint in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "s.db"
        self.point = folder / "m"
        self.log = folder / "log"
        self.point.mkdir()

    @property
    def mounted(self) -> bool:
        return mounted_at(os.fsencode(self.point)) is not None

    def mount(self, *options: str) -> None:
        """In the background."""
        done = commitfs("mount", self.store, self.point, "--log", self.log, *options)
        assert done.returncode == 0, done.stderr

    def umount(self) -> subprocess.CompletedProcess[bytes]:
        return commitfs("umount", self.point)

    def foreground(self, patch: str = "", *options: str) -> subprocess.Popen[bytes]:
        """A daemon that is this process's child, after `patch` was run in it; returns when it serves
        or has ended."""
        args = ["mount", "-f", str(self.store), str(self.point), *options]
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", PATCHED.format(patch=patch, args=args)],
                env=environment(),
                stdout=log,
                stderr=log,
            )
        while process.poll() is None and not (self.mounted and not is_dead(os.fsencode(self.point))):
            time.sleep(0.005)
        if process.poll() is None:
            os.statvfs(self.point)
        return process

    def names(self) -> list[bytes]:
        """Of the newest commit's root, read from the store, which nobody has open any more."""
        store = Store.open(str(self.store), writable=True)
        try:
            return sorted(name for name, _, _ in Snapshot(store, store.head).entries(1))
        finally:
            store.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    while place.mounted:
        subprocess.run(["fusermount3", "-u", "-z", place.point], check=True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_umount_returns_when_all_is_durable(place: Place) -> None:
    """Also what was staged only, and the store is free for others."""
    for number in range(5):
        place.mount("-o", "settle=1000")
        os.mkdir(place.point / f"d{number}")
        done = place.umount()
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert not place.mounted
        assert len(place.names()) == number + 1


def alignment(place: Place) -> int:
    store = Store.open(str(place.store))
    try:
        return store.align
    finally:
        store.close()


@pytest.mark.parametrize("align", [8, 512, 4096])
def test_the_alignment_is_chosen_when_the_store_is_made(place: Place, align: int) -> None:
    place.mount("-o", f"align={align}")
    place.umount()
    assert alignment(place) == align
    for more in ((), ("-o", f"align={align}"), ("-o", f"ro,align={align}")):
        place.mount(*more)
        assert place.umount().returncode == 0
    before = place.store.read_bytes()
    other = 512 if align != 512 else 4096
    for options in (f"align={other}", f"ro,align={other}"):
        done = commitfs("mount", place.store, place.point, "-o", options)
        assert done.returncode == 2
        assert done.stderr.startswith(b"commitfs: ")
        assert done.stderr.count(b"\n") == 1
        assert b"was made with align=%d," % align in done.stderr
        assert not place.mounted
        assert place.store.read_bytes() == before


def test_without_being_asked_for_there_is_no_alignment(place: Place) -> None:
    place.mount()
    place.umount()
    assert alignment(place) == 8


def test_umount_tells_when_the_last_commit_failed(place: Place) -> None:
    patch = """
async def close(self):
    raise OSError(28, 'No space left on device')
commitfs.vfs.vfs.Vfs.close = close
"""
    process = place.foreground(patch)
    done = place.umount()
    assert done.returncode == 1
    assert b"last commit failed" in done.stderr
    assert b"No space left" in done.stderr
    assert process.wait(timeout=60) == 1
    assert not place.mounted


def test_umount_tells_when_the_daemon_died(place: Place) -> None:
    patch = """
async def close(self):
    os.kill(os.getpid(), 9)
commitfs.vfs.vfs.Vfs.close = close
"""
    process = place.foreground(patch)
    done = place.umount()
    assert done.returncode == 1
    assert f"process {process.pid}" in done.stderr.decode()
    process.wait(timeout=60)


def test_umount_of_a_dead_mount_tells_that_changes_may_be_missing(place: Place) -> None:
    process = place.foreground("", "-o", "settle=1000")
    os.mkdir(place.point / "lost")
    process.kill()
    process.wait()
    assert is_dead(os.fsencode(place.point))
    done = place.umount()
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"commitfs: unmounted {place.point}, whose daemon had died: what was closed or synced is durable, "
        "changes of its last moments may be missing\n"
    )
    assert not place.mounted
    assert place.names() == []


def test_umount_of_a_dead_mount_that_only_read(place: Place) -> None:
    place.mount()
    place.umount()
    process = place.foreground("", "-o", "ro")
    process.kill()
    process.wait()
    done = place.umount()
    assert (done.returncode, done.stderr) == (0, b"")
    assert not place.mounted


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("commits", [0, 1])
def test_a_store_that_is_no_filesystem_is_refused(place: Place, background: bool, commits: int) -> None:
    Store.create(str(place.store))
    store = Store.open(str(place.store), writable=True)
    for _ in range(commits):
        tree = store.tree(store.head)
        tree.put(b"colour", b"red")
        txn = store.begin()
        txn.finish(root=tree.build(txn.add), time_ns=1)
        store.flush()
    store.close()
    done = commitfs("mount", place.store, place.point, *([] if background else ["-f"]))
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"commitfs: {place.store} holds no root directory, so it cannot be mounted: it is no filesystem\n"
    )
    assert not place.mounted


def test_a_damaged_root_is_told_with_what_can_be_done(place: Place) -> None:
    place.mount()
    (place.point / "f").write_text("f")
    place.umount()
    store = Store.open(str(place.store))
    assert store.head is not None
    at = store.head.root.offset + 20
    store.close()
    data = bytearray(place.store.read_bytes())
    data[at] ^= 1
    place.store.write_bytes(data)
    done = commitfs("mount", place.store, place.point)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert said.startswith(f"commitfs: {place.store} cannot be mounted: in commit 2, its newest, ")
    assert "older commits may be whole" in said
    assert said.count("\n") == 1
    assert commitfs("ls", place.store, "1").returncode == 0


def test_umount_of_another_users_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is asked of the daemon or the kernel."""
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    mount = Mount("0:9", b"/m", False, "fuse.commitfs", b"/s.db", 1000)
    monkeypatch.setattr("commitfs.daemon.umount.mounted_at", lambda point: mount)
    with pytest.raises(CommitfsError, match="not yours to unmount: user 1000"):
        umount(b"/m", "/nonexistent")


def test_umount_while_busy_loses_nothing(place: Place) -> None:
    place.mount()
    with open(place.point / "f", "w") as file:
        file.write("first")
        for _ in range(3):
            done = place.umount()
            assert done.returncode == 1
            assert b"busy" in done.stderr
        assert place.mounted
        file.write(" second")
    assert place.umount().returncode == 0
    assert place.names() == [b"f"]


def test_a_mount_right_after_the_kernels_umount(place: Place) -> None:
    """The earlier daemon may still be writing its last commit: the next one waits for it."""
    for number in range(4):
        place.mount("-o", "settle=1000")
        os.mkdir(place.point / f"d{number}")
        subprocess.run(["fusermount3", "-u", place.point], check=True)
    place.mount("-o", "ro")
    place.umount()
    wait_for(lambda: len(place.names()) == 4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_commit_everything_and_unmount(place: Place, number: signal.Signals) -> None:
    process = place.foreground("", "-o", "settle=1000")
    os.mkdir(place.point / "d")
    fd = os.open(place.point / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(4096))
    with mmap.mmap(fd, 4096) as mapped:
        mapped[:5] = b"dirty"
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
    with pytest.raises(OSError, match=r"not connected|abort"):
        os.close(fd)
    assert not place.mounted
    assert place.names() == [b"d", b"f"]
    store = Store.open(str(place.store))
    newest = Snapshot(store, store.head)
    assert newest.read(newest.resolve(b"f"), 0, 5) == b"dirty", "pages that only a mapping had"
    store.close()


def test_a_breakdown_leaves_the_mount_dead_and_the_commits_durable(place: Place, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    patch = f"""
async def failing(self, *, task_status):
    task_status.started()
    while not os.path.exists({str(trigger)!r}):
        await trio.sleep(0.005)
    raise ZeroDivisionError("a bug")
commitfs.vfs.vfs.Vfs.run = failing
"""
    process = place.foreground(patch)
    (place.point / "f").write_text("saved")
    os.mkdir(place.point / "d")
    trigger.touch()
    assert process.wait(timeout=60) == 70
    assert place.mounted
    assert is_dead(os.fsencode(place.point)), "not empty, which would look as if all had been deleted"
    said = place.log.read_text()
    assert "ZeroDivisionError: a bug" in said
    assert "Traceback" in said
    assert place.names() == [b"d", b"f"]
    assert json.loads(commitfs("stats", place.point, "--json").stdout)["files"] == 1, "through a dead mount"
    place.mount()
    assert sorted(os.listdir(place.point)) == ["d", "f"]
    assert place.umount().returncode == 0


def test_a_new_store_with_a_save_in_it_outlives_a_start_that_failed(place: Place) -> None:
    """The kernel has the mount before anybody is told that it serves, and hands requests over."""
    patch = f"""
from commitfs.fuse.session import Session
serve = Session.serve
def save():
    with open({str(place.point / "f")!r}, 'w') as file:
        file.write('saved')
async def failing(self, *, task_status):
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, self)
        await trio.to_thread.run_sync(save)
        raise ZeroDivisionError('a bug')
Session.serve = failing
"""
    process = place.foreground(patch)
    assert process.wait(timeout=60) == 70
    assert place.names() == [b"f"]


@pytest.mark.parametrize("background", [False, True])
def test_an_error_of_the_machine_before_it_serves_is_one_line(place: Place, background: bool) -> None:
    patch = """
def create(path, **options):
    raise OSError(28, 'No space left on device')
commitfs.daemon.mount.create_store = create
"""
    args = ["mount", str(place.store), str(place.point), *([] if background else ["-f"])]
    program = PATCHED.format(patch=patch, args=args)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"commitfs: cannot mount {place.store} at {place.point}: No space left on device\n"
    )


@pytest.mark.parametrize("background", [False, True])
def test_a_mount_that_fails_leaves_no_store(place: Place, background: bool) -> None:
    patch = """
def init(*args):
    os.write(2, b'fusermount3: mounting is not for you\\n')
    raise RuntimeError('failed')
pyfuse3.init = init
"""
    args = ["mount", str(place.store), str(place.point), *([] if background else ["-f"])]
    program = PATCHED.format(patch=patch, args=args)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"commitfs: cannot mount at {place.point}: fusermount3: mounting is not for you\n"
    assert os.listdir(place.store.parent) == ["m"]


def test_a_background_mount_needs_nothing_of_its_caller(place: Place) -> None:
    script = 'exec "$0" -m commitfs mount "$1" "$2" <&-'
    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, place.store, place.point],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == f"commitfs: made a new store at {place.store}\n"
    (place.point / "f").write_text("f")
    assert place.umount().returncode == 0
    assert place.names() == [b"f"]


def test_stacks_on_demand(place: Place) -> None:
    process = place.foreground()
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: "most recent call first" in place.log.read_text())
    assert place.umount().returncode == 0
    assert process.wait(timeout=60) == 0


def test_a_stores_name_may_be_any_bytes(place: Place, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/a,b\\c \xff\t#'=.db"
    done = commitfs("mount", odd, place.point)
    assert done.returncode == 0, done.stderr
    mount = mounted_at(os.fsencode(place.point))
    assert mount is not None
    assert (mount.source, mount.fstype) == (odd, "fuse.commitfs")
    (place.point / "f").write_text("f")
    (place.point / "d").mkdir()
    done = commitfs("log", place.point / "d", "--json")
    assert json.loads(done.stdout.splitlines()[0])["id"] == 3, "what was staged is committed before looking"
    assert place.umount().returncode == 0


def test_a_store_kept_in_a_mount_is_itself(place: Place, tmp_path: Path) -> None:
    place.mount()
    inner = place.point / "inner.db"
    other = tmp_path / "other"
    other.mkdir()
    done = commitfs("mount", inner, other)
    assert done.returncode == 0, done.stderr
    (other / "f").write_text("f")
    assert commitfs("umount", other).returncode == 0
    assert commitfs("ls", inner, "latest").stdout == b"f\n"
    assert commitfs("ls", place.point, "latest").stdout == b"inner.db\n"
    assert place.umount().returncode == 0


def test_another_name_for_the_source(place: Place) -> None:
    place.mount("-o", "fsname=backup")
    done = commitfs("log", place.point)
    assert done.returncode == 1
    assert b"give its path" in done.stderr
    assert place.umount().returncode == 0


def test_mount_flags_reach_the_kernel(place: Place) -> None:
    place.mount("-o", "ro,noexec") if place.store.exists() else place.mount()
    place.umount()
    place.mount("-o", "ro,noexec")
    flags = os.statvfs(place.point).f_flag
    assert flags & os.ST_RDONLY
    assert flags & os.ST_NOEXEC
    assert flags & os.ST_NOSUID
    with pytest.raises(OSError, match="Read-only") as caught:
        os.mkdir(place.point / "d")
    assert caught.value.errno == errno.EROFS
    assert place.umount().returncode == 0
