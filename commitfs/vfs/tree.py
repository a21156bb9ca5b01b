"""The tree as the vfs uses it: names looked up in it, live or of a commit."""

import errno

from commitfs.errors import FsError
from commitfs.format.inode import NAME_MAX, Dentry, decode_dentry
from commitfs.format.keys import COOKIE_SLOTS, cookie_base, dentry_key
from commitfs.format.node import NO_ROOT
from commitfs.store.store import Store
from commitfs.store.tree import Tree
from commitfs.vfs.content import TreeView


def live_tree(store: Store) -> Tree:
    """The tree of the newest commit, for what is staged on it."""
    return Tree(store.nodes, store.head.root if store.head is not None else NO_ROOT)


def slots(parent: int, base: int) -> tuple[bytes, bytes]:
    return dentry_key(parent, base), dentry_key(parent, base + COOKIE_SLOTS)


def find_dentry(tree: TreeView, parent: int, name: bytes) -> tuple[int, Dentry] | None:
    """(cookie, dentry) of a name in a tree."""
    for key, value in tree.scan(*slots(parent, cookie_base(name))):
        dentry = decode_dentry(value)
        if dentry.name == name:
            return int.from_bytes(key[9:17], "big"), dentry
    return None


def check_name(name: bytes) -> None:
    if len(name) > NAME_MAX:
        raise FsError(errno.ENAMETOOLONG)
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise FsError(errno.EINVAL)
