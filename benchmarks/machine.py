"""What a ratio was measured on."""

import fcntl
import os
import platform
import struct
import subprocess
from pathlib import Path

from benchmarks.report import Fact

_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL, as they are on every 64-bit Linux."""


def filesystem_of(folder: Path) -> str:
    """Type, device and options of the mount that holds `folder`: ``ext4 on /dev/vda (rw,relatime)``."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == wanted:
            kind, source, options = fields[fields.index("-") + 1 :]
            return f"{kind} on {source} ({options})"
    return "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model", "Hardware")):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def spread_folders(folder: Path) -> bool:
    """Ask ext4 to place each folder made in `folder` apart (chattr +T); False where it cannot.

    ext4 makes files an order of magnitude slower in a block group where inodes were freed in
    the last minutes, and folders of one parent share a group.  What earlier runs and rows
    removed would flatter whatever is compared with the disk below.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = struct.unpack("i", fcntl.ioctl(fd, _GET_FLAGS, bytes(4)))[0]
        fcntl.ioctl(fd, _SET_FLAGS, struct.pack("i", flags | _TOP_FOLDER))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def facts(folder: Path) -> dict[str, Fact]:
    """The machine, and the filesystem under `folder`, where the stores of this run lie."""
    return {
        "kernel": platform.release(),
        "arch": platform.machine(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "filesystem": filesystem_of(folder),
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def revision(root: Path) -> str:
    """The commit measured, with ``+`` behind it when files differ from it; ``unknown`` outside git."""
    try:
        head = subprocess.run(
            ["git", "-C", root, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "-C", root, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
