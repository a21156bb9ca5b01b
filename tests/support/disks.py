"""Small filesystems of their own for tests, as root only."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


def _needs(*programs: str) -> None:
    """Skips the test where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    missing = [name for name in (*programs, "mount", "umount") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {missing[0]}")


def _unmount(path: Path) -> None:
    # Lazily if need be: a loop device set up by mount goes with its last user.
    if run("umount", path).returncode != 0:
        run("umount", "-l", path)
    assert not os.path.ismount(path)


@contextmanager
def loop_ext4(folder: Path, size: int) -> Iterator[Path]:
    """The mountpoint of a new ext4 filesystem of `size` bytes in a file."""
    _needs("mkfs.ext4", "losetup")
    if not os.path.exists("/dev/loop-control"):
        pytest.skip("no loop devices")
    image, path = folder / "disk.img", folder / "disk"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    made = run("mkfs.ext4", "-q", "-F", "-m", "0", image)
    assert made.returncode == 0, made.stderr
    mounted = run("mount", "-o", "loop", image, path)
    if mounted.returncode != 0:
        pytest.skip(f"a file cannot be mounted as a disk: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        _unmount(path)
        left = run("losetup", "--noheadings", "--output", "NAME", "--associated", image).stdout.split()
        for device in left:
            run("losetup", "--detach", device)


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[Path]:
    """The mountpoint of a new tmpfs of `size` bytes."""
    _needs()
    path = folder / "tmpfs"
    path.mkdir()
    mounted = run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        _unmount(path)


def make_read_only(path: Path) -> None:
    done = run("mount", "-o", "remount,ro", path)
    assert done.returncode == 0, done.stderr
