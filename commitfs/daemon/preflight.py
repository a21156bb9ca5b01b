"""What is checked before a mount: each failure one clear line, and nothing created or changed.

The one exception is a mount whose daemon has died: it is unmounted, since nobody can use it.
"""

import errno
import os
import shutil
import stat
import subprocess

from commitfs.daemon.mountinfo import Mount, mounted_at
from commitfs.errors import CommitfsError, UsageError
from commitfs.fuse import FSTYPE

DEVICE = "/dev/fuse"
FUSE_CONF = "/etc/fuse.conf"


def check_device(device: str = DEVICE) -> None:
    try:
        os.close(os.open(device, os.O_RDWR))
    except FileNotFoundError:
        raise CommitfsError(
            f"{device} is missing: load the kernel module (modprobe fuse), or give the container the device"
        ) from None
    except OSError as exc:
        if exc.errno == errno.EACCES:
            raise CommitfsError(
                f"{device} is closed to this user: mount as root, or let root open it (chmod 666 {device})"
            ) from None
        if exc.errno == errno.EPERM:
            raise CommitfsError(f"{device} is forbidden here: give the container the device") from None
        raise CommitfsError(f"{device} cannot be opened: {exc.strerror}") from None


def find_fusermount(search_path: str) -> str:
    """Path of fusermount3, looked for in `search_path` (as in the variable PATH)."""
    found = shutil.which("fusermount3", path=search_path)
    if found is None:
        raise CommitfsError("fusermount3 is missing: install the package fuse3")
    return found


def check_allow_other(fuse_conf: str = FUSE_CONF, uid: int | None = None) -> None:
    """Other users may be let in by root, and by others where fuse.conf says so."""
    if (os.geteuid() if uid is None else uid) == 0:
        return
    try:
        with open(fuse_conf, encoding="utf-8", errors="replace") as file:
            allowed = any(line.strip() == "user_allow_other" for line in file)
    except OSError:
        allowed = False
    if not allowed:
        raise UsageError(f"allow_other needs the line user_allow_other in {fuse_conf} unless root mounts")


def check_store_path(path: bytes, *, read_only: bool) -> bool:
    """Whether there is a file to open; False: a store can be made there."""
    shown = os.fsdecode(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if read_only:
            raise UsageError(f"there is no store at {shown}") from None
        folder = os.path.dirname(path) or b"."
        if not os.path.isdir(folder):
            raise UsageError(
                f"cannot make a store at {shown}: {os.fsdecode(folder)} is no directory"
            ) from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(
                f"cannot make a store at {shown}: {os.fsdecode(folder)} is not writable"
            ) from None
        return False
    except OSError as exc:
        raise UsageError(f"cannot use {shown} as a store: {exc.strerror}") from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{shown} is a directory; a store is a file")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{shown} is not a regular file, so it cannot be a store")
    if not read_only and os.access(path, os.R_OK) and not os.access(path, os.W_OK):
        raise UsageError(f"{shown} is not writable; -o ro mounts it for reading only")
    return True


def check_mountpoint(point: bytes, store: bytes, fusermount: str) -> None:
    """`point` and `store` are absolute and free of symlinks."""
    shown = os.fsdecode(point)
    if store.startswith(point.rstrip(b"/") + b"/"):
        raise UsageError(
            f"the store {os.fsdecode(store)} lies below {shown} and would be hidden by the mount"
        )
    _remove_dead(point, fusermount)
    try:
        mode = os.stat(point).st_mode
    except FileNotFoundError:
        raise UsageError(f"mountpoint {shown} does not exist") from None
    except OSError as exc:
        raise UsageError(f"cannot mount at {shown}: {exc.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise UsageError(f"mountpoint {shown} is not a directory")
    mount = mounted_at(point)
    if mount is not None and point != b"/":
        raise UsageError(f"{shown} is in use: {_describe(mount)} is mounted there")
    try:
        with os.scandir(point) as entries:
            empty = next(entries, None) is None
    except OSError as exc:
        raise UsageError(f"cannot read mountpoint {shown}: {exc.strerror}") from None
    if not empty:
        raise UsageError(f"mountpoint {shown} is not empty")


def is_dead(path: bytes) -> bool:
    """Whether the daemon of the mount at `path` is gone.  lstat would still succeed: only statvfs tells."""
    try:
        os.statvfs(path)
    except OSError as exc:
        return exc.errno == errno.ENOTCONN
    return False


def _remove_dead(point: bytes, fusermount: str) -> None:
    while (mount := mounted_at(point)) is not None and mount.fstype == FSTYPE and is_dead(point):
        done = subprocess.run(
            [fusermount, "-u", "-z", "--", os.fsdecode(point)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "backslashreplace").strip()
            raise CommitfsError(f"a dead mount is at {os.fsdecode(point)} and cannot be removed: {said}")


def _describe(mount: Mount) -> str:
    return f"{os.fsdecode(mount.source)} ({mount.fstype})"
