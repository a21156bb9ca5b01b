"""Cases 37 to 40 (docs/testing.md) and what bad input gets.

The life of a mount, and one clear line when there is none.
"""

import hashlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitfs.daemon import control, mountinfo
from commitfs.daemon.umount import umount
from tests.mounted.conftest import Mounts
from tests.mounted.test_metadata import needs_root
from tests.support.acts import outcome
from tests.support.mounted import NO_TIMER, NOBODY, Mount, commitfs

pytestmark = pytest.mark.mounted

Background = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def background() -> Iterator[Background]:
    """``commitfs mount STORE MOUNTPOINT …`` without -f; what it mounted is unmounted with the test."""
    mountpoints: list[Path] = []

    def mount(store: Path, mountpoint: Path, *args: str) -> subprocess.CompletedProcess[str]:
        mountpoints.append(mountpoint)
        return commitfs("mount", store, mountpoint, *args)

    yield mount
    for mountpoint in mountpoints:
        if os.path.ismount(mountpoint) and commitfs("umount", mountpoint).returncode != 0:
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Not 0, one line on stderr, with `words` in it."""
    assert done.returncode != 0
    assert done.stderr.startswith("commitfs: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_background_mount_serves_when_it_returns(tmp_path: Path, background: Background) -> None:
    store, mountpoint = tmp_path / "s.db", tmp_path / "m"
    mountpoint.mkdir()
    done = background(store, mountpoint)
    assert done.returncode == 0, done.stderr
    assert "s.db" in done.stdout + done.stderr, "a store that is made is said to be made"
    (mountpoint / "f").write_text("f")
    os.rename(mountpoint / "f", mountpoint / "g")
    assert store.stat().st_mode & 0o7777 == 0o600
    done = commitfs("umount", mountpoint)
    assert done.returncode == 0, done.stderr
    assert not os.path.ismount(mountpoint)
    assert os.listdir(mountpoint) == []
    done = background(store, mountpoint)
    assert done.returncode == 0, done.stderr
    assert os.listdir(mountpoint) == ["g"]


def test_case_37_mounting_over_a_dead_mount(fs: Mount, background: Background) -> None:
    for number in range(20):
        (fs / f"f{number}").write_text(str(number))
    fs.kill9()
    with pytest.raises(OSError, match="not connected"):
        os.statvfs(fs.path)
    done = background(fs.store, fs.path)
    assert done.returncode == 0, done.stderr
    assert {p.name: p.read_text() for p in fs.path.iterdir()} == {f"f{i}": str(i) for i in range(20)}
    assert [mount.point for mount in mountinfo.mounts()].count(os.fsencode(fs.path)) == 1


def test_case_37_nothing_acknowledged_is_lost(mounts: Mounts) -> None:
    """P6: killed amid four writers; every file whose close returned is there, and none is torn."""
    fs = mounts()
    acknowledged: list[str] = []

    def write_on(writer: int) -> None:
        # No shell: those do not look at what close says.
        for number in itertools.count():
            name = f"{writer}.{number}"
            try:
                fd = os.open(fs / name, os.O_WRONLY | os.O_CREAT, 0o644)
                os.write(fd, name.encode())
                os.close(fd)
            except OSError:
                return
            acknowledged.append(name)

    writers = [threading.Thread(target=write_on, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    while len(acknowledged) < 500:
        time.sleep(0.01)
    fs.kill9()
    for writer in writers:
        writer.join()
    fs.start()
    for root in (fs.path, fs.newest()):
        kept = {name: (root / name).read_text() for name in os.listdir(root)}
        assert all(contents == name for name, contents in kept.items())
        assert set(acknowledged) <= kept.keys()
    fs.check()


def test_case_38_one_writer(fs: Mount, tmp_path: Path) -> None:
    (fs / "f").write_text("f")
    fs.latest()
    other = tmp_path / "other"
    other.mkdir()
    before = digest(fs.store)
    for args in ((), ("-f",)):
        assert_refused(commitfs("mount", fs.store, other, *args), str(fs.pid))
        assert digest(fs.store) == before
        assert not os.path.ismount(other)
    (fs / "f").write_text("still serving")
    assert (fs.newest() / "f").read_text() == "still serving"


def test_case_38_readers_beside_the_writer(fs: Mount, mounts: Mounts) -> None:
    (fs / "f").write_text("one")
    reader = mounts("ro", store=fs.store)
    assert (reader / "f").read_text() == "one"
    assert outcome(lambda: (reader / "g").write_text("g")) == "EROFS"
    assert outcome(lambda: os.mkdir(reader / "d")) == "EROFS"
    assert outcome(lambda: os.chmod(reader / "f", 0o600)) == "EROFS"
    (fs / "f").write_text("a longer two")
    os.mkdir(fs / "d")
    newest = fs.latest()
    while (
        reader.latest() != newest
        or not (reader / "d").exists()
        or (reader / "f").read_text() != "a longer two"
    ):
        time.sleep(0.01)
    assert fs.ids() == reader.ids() == [line["id"] for line in reversed(fs.log())]
    assert commitfs("ls", fs.store, "latest").stdout.split() == ["d", "f"]
    assert commitfs("cat", fs.store, "latest", "f").stdout == "a longer two"


@pytest.mark.parametrize("args", [(), ("-f",)])
def test_case_39_bad_mountpoints(tmp_path: Path, args: tuple[str, ...]) -> None:
    store = tmp_path / "s.db"
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/f").write_text("x")
    for mountpoint in ("missing", "file", "full"):
        assert_refused(commitfs("mount", store, tmp_path / mountpoint, *args), mountpoint)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["f", "file", "full"]


def test_a_mountpoint_in_use(fs: Mount, tmp_path: Path) -> None:
    (fs / "f").write_text("f")
    assert_refused(commitfs("mount", tmp_path / "another.db", fs.path), str(fs.path))
    assert not (tmp_path / "another.db").exists()
    assert os.listdir(fs.path) == ["f"]


def test_a_mountpoint_that_holds_the_store(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert_refused(commitfs("mount", tmp_path / "m/s.db", tmp_path / "m"))
    assert os.listdir(tmp_path / "m") == []


@pytest.mark.parametrize("args", [(), ("-f",)])
def test_bad_stores(fs: Mount, tmp_path: Path, args: tuple[str, ...]) -> None:
    (fs / "f").write_bytes(os.urandom(50_000))
    fs.unmount()
    good = fs.store.read_bytes()
    (tmp_path / "directory").mkdir()
    newer = bytearray(good)
    newer[7:8] = newer[4103:4104] = b"9"  # PURETRE3 -> PURETRE9, both slots
    files = {
        "empty": b"",
        "text": b"Dear diary\n" * 2000,
        "zeros": bytes(20_000),
        "short": good[:5000],
        "newer": bytes(newer),
    }
    for name, contents in files.items():
        (tmp_path / name).write_bytes(contents)
    mountpoint = tmp_path / "mountpoint"
    mountpoint.mkdir()
    for name in ["directory", *files]:
        assert_refused(commitfs("mount", tmp_path / name, mountpoint, *args), name)
        assert not os.path.ismount(mountpoint), name
    for name, contents in files.items():
        assert (tmp_path / name).read_bytes() == contents, name
    assert_refused(commitfs("mount", tmp_path / "no/such/folder/s.db", mountpoint, *args))
    assert not (tmp_path / "no").exists()


def test_bad_options(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for option in ("settle=soon", "settle=-1", "nonsense", "history=maybe"):
        assert_refused(commitfs("mount", tmp_path / "s.db", tmp_path / "m", "-o", option))
    assert sorted(os.listdir(tmp_path)) == ["m"]


def test_umount_of_what_is_not_a_mount(tmp_path: Path) -> None:
    assert_refused(commitfs("umount", tmp_path), str(tmp_path))
    assert_refused(commitfs("umount", tmp_path / "missing"), "missing")


def test_umount_while_busy(fs: Mount) -> None:
    with open(fs / "f", "w") as file:
        file.write("f")
        assert_refused(commitfs("umount", fs.path), "busy")
        file.write("g")
    assert (fs.newest() / "f").read_text() == "fg"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_mount_with_everything_durable(fs: Mount, number: signal.Signals) -> None:
    (fs / "f").write_text("f")
    os.rename(fs / "f", fs / "g")
    fs.terminate(number)
    assert not os.path.ismount(fs.path)
    assert os.listdir(fs.path) == []
    fs.start()
    assert os.listdir(fs.path) == os.listdir(fs.newest()) == ["g"]


def test_sigterm_keeps_what_an_open_file_has_pending(fs: Mount) -> None:
    fd = os.open(fs / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"written, not closed")
    fs.terminate()
    with pytest.raises(OSError, match=r"not connected|aborted"):
        os.close(fd)
    fs.start()
    assert (fs / "f").read_bytes() == b"written, not closed"


def test_the_commit_survives_the_kernels_umount(fs: Mount) -> None:
    os.mkdir(fs / "d")
    fs.unmount()
    fs.start("ro", NO_TIMER)
    assert os.listdir(fs.path) == ["d"]
    assert outcome(lambda: os.rmdir(fs / "d")) == "EROFS"


@needs_root
def test_case_40_other_users_are_let_in_only_when_asked_for(mounts: Mounts) -> None:
    closed, opened = mounts(NO_TIMER), mounts(NO_TIMER, "allow_other")
    for fs in (closed, opened):
        os.chmod(fs.path, 0o755)
        (fs / "f").write_text("f")
    assert opened.sh("cat f", shell="dash", user=NOBODY) == "f"
    assert closed.sh("cat f 2>/dev/null || echo refused", shell="dash", user=NOBODY) == "refused\n"


def test_damage_is_detected_and_hides_nothing_else(fs: Mount) -> None:
    """P7: a flipped bit gives EIO where it is, and only there."""
    contents = os.urandom(4096)
    (fs / "bad").write_bytes(contents)
    (fs / "good").write_bytes(b"good" * 1000)
    fs.unmount()
    stored = bytearray(fs.store.read_bytes())
    at = stored.index(contents[1000:1100])
    stored[at + 50] ^= 4
    fs.store.write_bytes(stored)
    fs.may_complain = True
    fs.start()
    assert outcome(lambda: (fs / "bad").read_bytes()) == "EIO"
    assert (fs / "good").read_bytes() == b"good" * 1000
    (fs / "new").write_bytes(b"new")
    assert sorted(os.listdir(fs.newest())) == ["bad", "good", "new"]
    done = commitfs("check", fs.store)
    assert done.returncode == 1
    found = [line for line in done.stdout.splitlines() if line.startswith("damage, commit ")]
    assert [line.split(", ")[1] for line in found] == ["commit 00000002"] * len(found)
    assert any(", bad: " in line for line in found)


def test_unmounting_while_releases_are_queued(fs: Mount) -> None:
    """The kernel drops the RELEASEs it has not sent yet; nothing that was closed is lost for that."""
    for turn in range(5):
        for number in range(300):
            (fs / f"f{turn}.{number}").touch()
        fs.remount()
        assert len(os.listdir(fs.path)) == 300 * (turn + 1)


@needs_root
def test_unmounting_while_a_copy_lives_on_elsewhere(fs: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount namespace made meanwhile has copies of all mounts.  The kernel's umount ends this one alone,
    and the daemon serves the copy on; `commitfs umount` ends it."""
    monkeypatch.setattr(control, "PATIENCE", 0.1)
    (fs / "f").write_text("f")
    elsewhere = subprocess.Popen(["unshare", "-m", "sleep", "1000"])
    try:
        here = os.readlink("/proc/self/ns/mnt")
        while os.readlink(f"/proc/{elsewhere.pid}/ns/mnt") == here:
            time.sleep(0.001)
        assert fs.process is not None
        umount(os.fsencode(fs.path), "fusermount3")
        assert fs.process.wait(timeout=60) == 0
        with pytest.raises(OSError, match="not connected"):
            os.stat(f"/proc/{elsewhere.pid}/root{fs.path}/f")
    finally:
        elsewhere.kill()
        elsewhere.wait(timeout=60)
    assert os.listdir(fs.path) == []
    fs.close()
    fs.start("ro", NO_TIMER)
    assert (fs / "f").read_text() == "f"
