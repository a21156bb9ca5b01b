"""A live inode in memory, where it is, and the number a new one gets."""

import errno
import stat
from typing import Protocol

from commitfs.errors import FsError
from commitfs.format.inode import Inode, decode_allocator, decode_dentry, encode_allocator
from commitfs.format.keys import (
    ALLOCATOR_KEY,
    GROUP,
    MAX_LIVE_INO,
    ROOT_INO,
    dentry_key,
    inode_key,
    inode_range,
)
from commitfs.vfs.content import Pending, TreeEdit
from commitfs.vfs.paths import DEPTH_MAX, joined

MAX_PATHS = 1024


class Fresh:
    """Where a file that never was at a commit point is named."""

    __slots__ = ("cookie", "name", "parent")

    def __init__(self, parent: int, name: bytes, cookie: int) -> None:
        self.parent = parent
        self.name = name
        self.cookie = cookie


class Node:
    """A live inode in memory."""

    __slots__ = ("attr", "fresh", "handles", "ino", "pending", "saved", "spilling", "writers", "xattrs")

    def __init__(self, ino: int, attr: Inode, saved: Inode | None) -> None:
        self.ino = ino
        self.attr = attr
        self.saved = saved
        self.pending: Pending | None = None
        self.fresh: Fresh | None = None
        self.xattrs: dict[bytes, bytes] | None = None
        """Of a fresh or dead inode only; else they are in the tree."""
        self.handles = 0
        self.writers = 0
        self.spilling = False

    @property
    def dead(self) -> bool:
        """No name leads here any more."""
        return self.saved is None and self.fresh is None

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.attr.mode)


class FreshNames:
    """The names of files that never were at a commit point: in no tree, here alone."""

    def __init__(self) -> None:
        self._names: dict[int, dict[bytes, Node]] = {}
        self._cookies: set[tuple[int, int]] = set()

    def add(self, node: Node, parent: int, name: bytes, cookie: int) -> None:
        node.fresh = Fresh(parent, name, cookie)
        self._names.setdefault(parent, {})[name] = node
        self._cookies.add((parent, cookie))

    def lift(self, node: Node) -> None:
        """Take the node's name away."""
        fresh = node.fresh
        assert fresh is not None
        names = self._names[fresh.parent]
        del names[fresh.name]
        if not names:
            del self._names[fresh.parent]
        self._cookies.discard((fresh.parent, fresh.cookie))
        node.fresh = None

    def find(self, parent: int, name: bytes) -> Node | None:
        names = self._names.get(parent)
        return None if names is None else names.get(name)

    def taken(self, parent: int, cookie: int) -> bool:
        return (parent, cookie) in self._cookies

    def count(self, parent: int) -> int:
        """How many there are in a directory."""
        names = self._names.get(parent)
        return 0 if names is None else len(names)

    def behind(self, parent: int, cookie: int) -> list[tuple[int, bytes, int]]:
        """(cookie, name, inode) of those of a directory with cookies above `cookie`, the last one first."""
        found = []
        for name, node in (self._names.get(parent) or {}).items():
            assert node.fresh is not None
            if node.fresh.cookie > cookie:
                found.append((node.fresh.cookie, name, node.ino))
        return sorted(found, reverse=True)


class Space(Protocol):
    """The live inodes, and the tree of those that are not in memory."""

    @property
    def tree(self) -> TreeEdit: ...
    @property
    def nodes(self) -> dict[int, Node]: ...
    def node(self, ino: int) -> Node: ...


class Paths:
    """Where things are, for the facts of a commit."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: dict[int, bytes] = {}
        """Of directories."""

    def forget(self) -> None:
        """A directory moves, or goes."""
        self._known.clear()

    def of(self, node: Node) -> bytes:
        """Path of an inode by its primary link; b"" for the root."""
        space = self._space
        parts: list[bytes] = []
        while node.ino != ROOT_INO:
            if node.fresh is not None:
                parent, name = node.fresh.parent, node.fresh.name
            else:
                parent = node.attr.parent
                value = space.tree.get(dentry_key(parent, node.attr.cookie))
                if value is None or len(parts) > DEPTH_MAX:
                    break
                name = decode_dentry(value).name
            parts.append(name)
            known = self._known.get(parent)
            if known is not None:
                if known:
                    parts.append(known)
                break
            node = space.node(parent)
        return b"/".join(reversed(parts))

    def child(self, parent: int, name: bytes) -> bytes:
        """Path of a name in a directory."""
        above = self._known.get(parent)
        if above is None:
            above = self.of(self._space.node(parent))
            if len(self._known) >= MAX_PATHS:
                self._known.clear()
            self._known[parent] = above
        return joined(above, name)


class InodeNumbers:
    """Hands out inode numbers near the directory they are made in.

    A directory takes the first number of a group of its own, its first children the rest of the group:
    their keys then share leaves.  Later children get further groups.  Numbers are reused only after all
    groups have been handed out once.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._next = self._saved = 0
        """The next free group, and what the tree says of it; 0: not asked yet, since a tree in which that is
        damaged can be read all the same."""
        self._wrapped = False

    def take(self, parent: Node, directory: bool) -> int:
        """A free number for a child of `parent`, whose attributes note where the next one is."""
        if directory:
            return self._group()
        ino = parent.attr.extra
        while True:
            if ino == 0 and parent.ino % GROUP == 0:
                ino = parent.ino + 1
            elif ino % GROUP == 0:
                ino = self._group()
            # A file that never was committed and is gone by name may still be open, and its number
            # may not have been noted with its directory.
            if ino not in self._space.nodes and not (self._wrapped and self._in_tree(ino)):
                break
            ino += 1
        parent.attr = parent.attr._replace(extra=ino + 1)
        return ino

    def _group(self) -> int:
        space = self._space
        if not self._next:
            value = space.tree.get(ALLOCATOR_KEY)
            self._next = self._saved = decode_allocator(value) if value else 1
        for _ in range(MAX_LIVE_INO // GROUP):
            if self._next * GROUP + GROUP > MAX_LIVE_INO:
                self._next, self._wrapped = 1, True
            first = self._next * GROUP
            self._next += 1
            if not self._wrapped:
                return first
            low, high = inode_range(first)[0], inode_range(first + GROUP)[0]
            unused = next(space.tree.scan(low, high), None) is None
            if unused and not any(first + n in space.nodes for n in range(GROUP)):
                return first
        raise FsError(errno.ENOSPC, "no inode numbers left")

    def _in_tree(self, ino: int) -> bool:
        return self._space.tree.get(inode_key(ino)) is not None

    @property
    def saved(self) -> bool:
        """Whether the tree knows which numbers are given out."""
        return self._next == self._saved

    def save(self) -> None:
        """Into the tree, with a commit that is made anyway."""
        if self._next != self._saved:
            self._space.tree.put(ALLOCATOR_KEY, encode_allocator(self._next))
            self._saved = self._next
