"""From what the user names to a store that is open for reading."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from commitfs.cli.output import complain
from commitfs.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from commitfs.daemon.mountinfo import Mount
    from commitfs.store.store import Store


@contextmanager
def reading(text: str, report: Callable[[str], None] = complain) -> Iterator[Store]:
    """The store that `text` names, open for reading.  Works while it is mounted."""
    from commitfs.store.store import Store

    store = Store.open(os.fsdecode(store_path(given(text, "STORE"))), report=report)
    try:
        yield store
    finally:
        store.close()


def given(text: str, what: str) -> bytes:
    """A path the user gave.  An empty one, mostly a variable that was not set, would mean this folder."""
    if not text:
        raise UsageError(f"{what} is empty")
    return os.fsencode(text)


def store_path(path: bytes) -> bytes:
    """The store file: `path` itself, or where it lies inside a mount, the store mounted there.

    In a live mount what is staged is committed first, so that history holds what was just done.
    """
    mount = _mount_of(path)
    if mount is None:
        return path
    with suppress(OSError):
        os.readlink(os.path.join(mount.point, b".commits/latest"))
    if not os.path.isfile(mount.source):
        raise NotFoundError(
            f"the store mounted at {os.fsdecode(mount.point)} is not at {os.fsdecode(mount.source)}: "
            "give its path"
        )
    return mount.source


def _mount_of(path: bytes) -> Mount | None:
    from commitfs.daemon.mountinfo import mounted_over, mounts
    from commitfs.fuse import FSTYPE

    try:
        found = os.stat(path)
    except OSError as exc:
        if exc.errno != errno.ENOTCONN:
            return None
        # A dead mount: its store can be read all the same.
        mount = mounted_over(os.path.realpath(path))
        return mount if mount is not None and mount.fstype == FSTYPE else None
    if stat.S_ISREG(found.st_mode) and _looks_like_store(path):
        return None
    device = f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}"
    return next((m for m in mounts() if m.device == device and m.fstype == FSTYPE), None)


def _looks_like_store(path: bytes) -> bool:
    """Whether a file, which may lie in a mount, is a store of its own."""
    from commitfs.format.slot import SLOT_OFFSETS

    with suppress(OSError), open(path, "rb") as file:
        for offset in SLOT_OFFSETS:
            file.seek(offset)
            if file.read(7) == b"PURETRE":
                return True
    return False


def tree_path(text: str) -> bytes:
    """A path in a commit as the bytes the user gave; relative to the root, without empty parts."""
    path = os.fsencode(text)
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise UsageError("a path in a commit cannot contain ..")
    return b"/".join(parts)
