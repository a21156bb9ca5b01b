"""A daemon that is short of descriptors, threads or memory, and stores where less is possible than usual."""

import os
import re
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from commitfs.vfs.headroom import HEADROOM
from tests.mounted.conftest import Mounts
from tests.support.acts import outcome
from tests.support.disks import make_read_only, tmpfs
from tests.support.interposer import build, variables
from tests.support.mounted import NO_TIMER, Mount, commitfs, environment
from tests.support.tracing import Injection, injected, struck, tracing_missing
from tests.support.world import open_vfs, save

pytestmark = pytest.mark.mounted

DAY = 86_400 * 10**9
STEP = 1 << 17
LARGE = 3 << 20
"""Bytes of a file that goes through a stage."""


def save_some(fs: Mount, count: int = 40) -> dict[str, bytes]:
    """Files small and large, more than there are commits between two slots."""
    saved = {f"f{number}": os.urandom(5000) for number in range(count)}
    saved["large"] = os.urandom(LARGE)
    for name, data in saved.items():
        (fs / name).write_bytes(data)
    return saved


def write_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def assert_saved(fs: Mount, saved: dict[str, bytes]) -> None:
    for root in (fs.path, fs.newest()):
        for name, data in saved.items():
            assert (root / name).read_bytes() == data, root / name


# Descriptors


def limited(limit: int, *args: str | Path) -> "subprocess.CompletedProcess[str]":
    """The command line with so many descriptors at most."""
    return subprocess.run(
        ["bash", "-c", 'ulimit -n "$0" && exec "$@"', str(limit), sys.executable, "-m", "commitfs", *args],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_start_without_descriptors_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """From the fewest a Python starts with, up to where it serves."""
    point, store = tmp_path / "m", tmp_path / "s.db"
    point.mkdir()
    refused = 0
    for limit in range(4, 40, 2):
        done = limited(limit, "mount", store, point)
        if done.returncode == 0:
            break
        assert done.stderr.startswith("commitfs: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert "Too many open files" in done.stderr
        assert os.listdir(tmp_path) == ["m"], "no store of a mount that never served"
        refused += 1
    try:
        assert refused >= 4
        assert done.returncode == 0
        (point / "f").write_bytes(b"f")
        assert (point / ".commits/latest/f").read_bytes() == b"f"
    finally:
        ended = commitfs("umount", point)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_serving_takes_no_further_descriptor(mounts: Mounts) -> None:
    """However many files are open, whatever is saved, and whoever waits for its end."""
    fs = mounts(NO_TIMER)
    (fs / "first").write_bytes(b"first")
    used = len(os.listdir(f"/proc/{fs.pid}/fd"))
    resource.prlimit(fs.pid, resource.RLIMIT_NOFILE, (used, used))
    saved = save_some(fs)
    opened = [os.open(fs / "first", os.O_RDONLY) for _ in range(500)]
    assert all(os.pread(fd, 10, 0) == b"first" for fd in opened)
    for fd in opened:
        os.close(fd)
    assert_saved(fs, saved)
    # Those who wait for its end cannot be taken in either, and are told all the same.
    waiting = subprocess.run(
        [sys.executable, "-m", "commitfs", "umount", str(fs.path)],
        env=environment(),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (waiting.returncode, waiting.stderr) == (0, "")
    assert fs.process is not None
    assert fs.process.wait(timeout=60) == 0
    fs.close()
    fs.start()
    assert_saved(fs, saved)


# Threads


@pytest.mark.skipif(bool(tracing_missing()), reason=tracing_missing())
def test_no_thread_can_be_started(mounts: Mounts, tmp_path: Path) -> None:
    """Saving goes on in the one there is, and the end is in good order."""
    fs = mounts(NO_TIMER)
    log = tmp_path / "strace.log"
    with injected(fs.pid, Injection("clone,clone3", "error=EAGAIN"), log):
        saved = save_some(fs)
        assert_saved(fs, saved)
        assert struck(log) > 0
        assert fs.terminate() == 0
    fs.may_complain = True
    assert fs.stderr_text().count("WARNING") == 1
    assert "memory map" in fs.stderr_text()
    fs.close()
    fs.start()
    assert_saved(fs, saved)
    fs.check()


# Memory


def bound_memory(pid: int, more: int) -> None:
    """Let the process have `more` bytes of address space than it has."""
    found = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    limit = int(found[1]) * 1024 + more
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def open_into(opened: list[int], path: Path) -> None:
    opened.append(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def write_whole(fd: int, data: bytes) -> None:
    assert os.write(fd, data) == len(data)


@pytest.mark.parametrize("more", [HEADROOM // 2, 2 * HEADROOM])
def test_out_of_memory_is_enomem_and_no_dead_mount(mounts: Mounts, more: int) -> None:
    """Writes are refused; what was accepted is saved at its close, what is there is read, and once there is
    memory everything works again without a remount."""
    fs = mounts(NO_TIMER)
    saved = save_some(fs, 5)
    bound_memory(fs.pid, more)
    refused = 0
    opened: list[int] = []
    for number in range(100):
        name, data = f"half{number}", os.urandom(900_000)
        made = outcome(partial(open_into, opened, fs / name))
        if made != "ok":
            assert made == "ENOMEM"
            refused += 1
            continue
        saved[name] = b""
        for at in range(0, len(data), STEP):
            part = data[at : at + STEP]
            answer = outcome(partial(write_whole, opened[-1], part))
            if answer != "ok":
                assert answer == "ENOMEM"
                refused += 1
                break
            saved[name] += part
    assert refused > 20
    assert (len(opened) > 10) == (more > HEADROOM)
    for name, data in saved.items():
        assert (fs / name).read_bytes() == data, name
    for fd in opened:
        os.close(fd)
    assert_saved(fs, saved)
    resource.prlimit(fs.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    saved.update(save_some(fs, 5))
    assert_saved(fs, saved)
    assert fs.process is not None
    assert fs.process.poll() is None
    fs.remount()
    assert_saved(fs, saved)
    fs.check()


# Filesystems


def test_a_store_on_a_read_only_file_system(mounts: Mounts, tmp_path: Path) -> None:
    with tmpfs(tmp_path, 32 << 20) as disk:
        fs = mounts(NO_TIMER, store=disk / "s.db")
        saved = save_some(fs)
        fs.unmount()
        make_read_only(disk)
        for words in ("log", "show latest", "ls latest", "cat latest f1", "stats", "check"):
            command, *rest = words.split()
            done = commitfs(command, fs.store, *rest)
            assert (done.returncode, done.stderr) == (0, ""), words
        for store in (fs.store, disk / "new.db"):
            done = commitfs("mount", store, fs.path)
            assert done.returncode == 2
            assert re.fullmatch(r"commitfs: .* is not writable.*\n", done.stderr), done.stderr
        fs.start("ro")
        assert_saved(fs, saved)
        assert outcome(partial(write_file, fs / "f1", b"x")) == "EROFS"
        fs.unmount()


def test_a_store_on_tmpfs(mounts: Mounts, tmp_path: Path) -> None:
    """Its end included: it is full, and then not any more."""
    with tmpfs(tmp_path, 16 << 20) as disk:
        fs = mounts(NO_TIMER, store=disk / "s.db")
        saved = save_some(fs)
        assert_saved(fs, saved)
        data = os.urandom(4 << 20)
        answers = [outcome(partial(write_file, fs / f"more{number}", data)) for number in range(5)]
        assert set(answers) == {"ok", "ENOSPC"}
        assert_saved(fs, saved)
        subprocess.run(["mount", "-o", f"remount,size={64 << 20}", disk], check=True)
        saved["more4"] = data
        (fs / "more4").write_bytes(data)
        assert_saved(fs, saved)
        fs.remount()
        assert_saved(fs, saved)
        fs.check()
        fs.unmount()


SCRIPTS = {
    "short and interrupted": "short:100 interrupt short:7 ok again",
    "no synced writes": "refuse again",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_writes_that_do_less_than_asked(tmp_path: Path, script: str) -> None:
    """Every write of the daemon is short or interrupted; or its file system knows no RWF_DSYNC."""
    (tmp_path / "script").write_text(script)
    calls = tmp_path / "calls"
    preload = variables(build(tmp_path), tmp_path / "script", calls)
    fs = Mount(tmp_path / "mount", NO_TIMER, variables=preload)
    try:
        saved = save_some(fs)
        assert_saved(fs, saved)
        fs.unmount()
        noted = calls.read_text().splitlines()
        assert len(noted) > 100
        assert (noted.count("sync") > 40) == ("refuse" in script)
        fs.variables = None
        fs.start()
        assert_saved(fs, saved)
        fs.check()
        assert fs.trouble() == ""
    finally:
        fs.close()


# Time


def test_the_clock_is_set_back_a_day(mounts: Mounts, tmp_path: Path) -> None:
    """P3: order is by id, recorded times never go backwards, over a remount too."""
    store = tmp_path / "s.db"
    ahead = time.time_ns() + DAY

    async def build_ahead() -> None:
        async with open_vfs(store) as vfs:
            vfs.live.now = lambda: ahead
            for number in range(3):
                await save(vfs, b"f%d" % number, b"%d" % number)

    trio.run(build_ahead)
    fs = mounts(NO_TIMER, store=store)
    for turn in range(3):
        (fs / "f0").write_bytes(b"turn %d" % turn)
        assert (fs.newest() / "f0").read_bytes() == b"turn %d" % turn
        assert abs((fs / "f0").stat().st_mtime_ns - time.time_ns()) < DAY // 2, "a file has the time it was"
        fs.remount()
    entries = fs.log()[::-1]
    assert [entry["id"] for entry in entries] == list(range(1, len(entries) + 1))
    times = [entry["time_ns"] for entry in entries]
    assert times == sorted(times)
    assert times[-1] == ahead
    at = [fs.commit(number).stat().st_mtime_ns for number in fs.ids()]
    assert at == times
    newest = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(ahead // 10**9 + 1))
    assert int(os.readlink(fs / f".commits/{newest}")) == fs.latest()
    fs.check()
