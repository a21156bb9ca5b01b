"""Unmount, and return when everything is durable."""

import os
import subprocess

from commitfs.daemon.control import Waiter
from commitfs.daemon.mountinfo import mounted_at
from commitfs.daemon.preflight import is_dead
from commitfs.errors import CommitfsError, UsageError
from commitfs.fuse import FSTYPE


def umount(mountpoint: bytes, fusermount: str) -> None:
    """Raises UsageError when no commitfs is mounted there, CommitfsError when it is busy (it stays
    mounted, with nothing lost), another user's, or when its daemon could not make the last commit
    durable or had died before."""
    point = os.path.realpath(mountpoint)
    shown = os.fsdecode(point)
    mount = mounted_at(point)
    if mount is None:
        raise UsageError(f"nothing is mounted at {shown}")
    if mount.fstype != FSTYPE:
        raise UsageError(f"what is mounted at {shown} is {mount.fstype}, not a commitfs")
    if os.geteuid() not in (0, mount.owner):
        raise CommitfsError(
            f"{shown} is not yours to unmount: user {mount.owner} mounted it, and only they and root can"
        )
    try:
        waiter = Waiter(mount)
    except OSError:
        waiter = None
    dead = waiter is None and is_dead(point)
    try:
        _fusermount(fusermount, shown)
    except BaseException:
        if waiter is not None:
            waiter.close()
        raise
    if waiter is not None:
        waiter.wait()
    elif mount.read_only:
        return
    elif dead:
        raise CommitfsError(
            f"unmounted {shown}, whose daemon had died: what was closed or synced is durable, "
            "changes of its last moments may be missing"
        )
    else:
        raise CommitfsError(
            f"unmounted {shown}, but its daemon cannot be asked whether the last commit is durable"
        )


def _fusermount(fusermount: str, point: str) -> None:
    done = subprocess.run(
        [fusermount, "-u", "--", point],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={"LC_ALL": "C"},
    )
    if done.returncode == 0:
        return
    said = done.stderr.decode("utf-8", "backslashreplace").strip()
    if "busy" in said:
        raise CommitfsError(
            f"{point} is busy and stays mounted: close the files and leave the folders in it "
            f"(fuser -vm {point} names who has them)"
        )
    raise CommitfsError(f"cannot unmount {point}: {said}")
