"""What a store holds, in figures: commits, and files and bytes of the newest tree."""

import os
import stat
from typing import NamedTuple

from commitfs.errors import StoreError
from commitfs.format.extent import decode_extent
from commitfs.format.inode import Blob, decode_inode, decode_xattr
from commitfs.format.keys import EXTENT, INODE, XATTR, split_key
from commitfs.format.record import RECORD_SIZE
from commitfs.store.store import Store
from commitfs.vfs.api import StatFs
from commitfs.vfs.snapshot import Snapshot


class Usage(NamedTuple):
    """Counts, and sizes in bytes, in the order in which docs/cli.md tells of them."""

    commits: int
    """That can be read; 0: none yet."""
    oldest: int
    newest: int
    published_end: int
    """Where the newest commit ends in the file."""
    file_bytes: int
    live_bytes: int
    """What a store of the newest commit alone would take: the two following."""
    live_data: int
    live_metadata: int
    files: int
    directories: int
    others: int
    """Symlinks, devices, pipes and sockets."""


def usage_of(store: Store) -> Usage:
    """Reads every node of the newest tree, once, and none of its files' bytes.  CorruptError;
    StoreError where there is a tree that is no filesystem's."""
    if store.head is not None and not Snapshot(store, store.head).has_root():
        raise StoreError(f"{store.path} holds no root directory: it is no filesystem, with no files to count")
    newest = 0 if store.head is None else int(store.head.id)
    files = directories = others = data = 0
    metadata = RECORD_SIZE if newest else 0
    root = store.tree(store.head).root
    todo = [root] if root.length else []
    while todo:
        node = todo.pop()
        metadata += node.length
        if node.level:
            todo.extend(child for _, child in store.nodes.children(node))
            continue
        for key, value in store.nodes.entries(node):
            kind = split_key(key)[1]
            blob: object = None
            if kind == EXTENT:
                data += decode_extent(value).length
            elif kind == XATTR:
                blob = decode_xattr(value)
            elif kind == INODE:
                inode = decode_inode(value)
                blob = inode.target
                files += stat.S_ISREG(inode.mode)
                directories += stat.S_ISDIR(inode.mode)
                others += not (stat.S_ISREG(inode.mode) or stat.S_ISDIR(inode.mode))
            if isinstance(blob, Blob):
                data += blob.length
    return Usage(
        commits=newest - int(store.oldest_id) + 1 if newest else 0,
        oldest=int(store.oldest_id) if newest else 0,
        newest=newest,
        published_end=store.published_end,
        file_bytes=store.file_bytes,
        live_bytes=data + metadata,
        live_data=data,
        live_metadata=metadata,
        files=files,
        directories=directories,
        others=others,
    )


__all__ = ["Usage", "usage_of"]


def disk_below(store: Store) -> StatFs:
    """Figures of the filesystem the store lies on."""
    found = os.statvfs(store.path)
    return StatFs(
        found.f_bsize,
        found.f_frsize,
        found.f_blocks,
        found.f_bfree,
        found.f_bavail,
        found.f_files or 1 << 32,
        found.f_ffree or 1 << 31,
        found.f_favail or 1 << 31,
        found.f_namemax or 255,
    )
