"""A tree as plain values, to be compared with another."""

import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    mode: int
    uid: int
    gid: int
    nlink: int  # 0 for directories: some filesystems count subdirectories, some do not
    mtime_ns: int
    size: int  # 0 for directories: theirs is nobody's business
    contents: str  # sha256 of a file, target of a symlink
    xattrs: tuple[tuple[str, bytes], ...]


def entry(path: Path, *, contents: bool = True) -> Entry:
    """What `path` itself is; symlinks are not followed."""
    found = os.lstat(path)
    directory = stat.S_ISDIR(found.st_mode)
    text = ""
    if stat.S_ISLNK(found.st_mode):
        text = os.readlink(path)
    elif stat.S_ISREG(found.st_mode) and contents:
        text = hashlib.sha256(path.read_bytes()).hexdigest()
    names = sorted(name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user."))
    return Entry(
        found.st_mode,
        found.st_uid,
        found.st_gid,
        0 if directory else found.st_nlink,
        found.st_mtime_ns,
        0 if directory else found.st_size,
        text,
        tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names),
    )


def tree(root: Path) -> dict[str, Entry]:
    """Everything below `root` by relative path; the root itself is left out."""
    found: dict[str, Entry] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = entry(path)
    return found


def differences(a: dict[str, Entry], b: dict[str, Entry]) -> list[str]:
    """One line for each path that is not the same in both, at most twenty."""
    lines = [
        f"{path}: {a.get(path)} / {b.get(path)}"
        for path in sorted(a.keys() | b.keys())
        if a.get(path) != b.get(path)
    ]
    return lines[:20]


def only_file_times(entries: dict[str, Entry]) -> dict[str, Entry]:
    """The same without the times of all but files: rsync 3.5 does not set them, here or on a disk."""
    return {p: e if stat.S_ISREG(e.mode) else e._replace(mtime_ns=0) for p, e in entries.items()}
