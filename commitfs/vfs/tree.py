"""The tree as the vfs uses it: the live one, which counts its changes, and names looked up in any."""

import errno

from commitfs.errors import FsError
from commitfs.format.inode import NAME_MAX, Dentry, decode_dentry
from commitfs.format.keys import COOKIE_SLOTS, cookie_base, dentry_key
from commitfs.format.node import NO_ROOT
from commitfs.store.store import Store
from commitfs.store.tree import Tree
from commitfs.vfs.content import TreeView


class LiveTree(Tree):
    """The tree of the newest commit, which counts what was staged in it."""

    __slots__ = ("edits",)

    def __init__(self, store: Store) -> None:
        super().__init__(store.nodes, store.head.root if store.head is not None else NO_ROOT)
        self.edits = 0

    def put(self, key: bytes, value: bytes) -> None:
        super().put(key, value)
        self.edits += 1

    def delete(self, key: bytes) -> bool:
        found = super().delete(key)
        self.edits += found
        return found


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
