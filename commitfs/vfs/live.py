"""The live tree: the newest commit's tree with staged changes in it, and what is pending beside it.

Two kinds of state, kept apart so that a commit is simply "encode the tree's dirty nodes":

staged    namespace changes.  They are in `Live.tree` already and go with the next commit, whoever makes it.
pending   contents since a file's last commit point, and files that never had one ("fresh"): only in
          `Node`, never in the tree.  `Node.attr` is what the user sees, `Node.saved` what the tree has.

Invariants
  L1  The tree holds exactly `saved` of every inode; a fresh node has none, and neither its dentry nor
      its inode is in the tree.
  L2  Every change of an inode, dentry or tombstone in the tree carries the id of the next commit, which
      is the one that will hold it.
  L3  All of this module is synchronous: no other task sees a half-made change.
  L4  Reads come before changes; an error between two changes breaks the vfs (`broken`) rather than
      letting half an operation be committed.
"""

import errno
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from commitfs.errors import CorruptError, FsError, ReadOnlyError
from commitfs.format.facts import Change
from commitfs.format.inode import (
    INLINE_MAX,
    Blob,
    Dentry,
    decode_dentry,
    decode_inode,
    decode_xattr,
    encode_dentry,
    encode_inode,
    encode_xattr,
)
from commitfs.format.keys import (
    BACKREF,
    COOKIE_SLOTS,
    XATTR,
    backref_key,
    backref_of,
    cookie_base,
    dentry_key,
    inode_key,
    inode_range,
    key_u64,
    tombstone_key,
    type_range,
    xattr_key,
)
from commitfs.store.store import Store
from commitfs.store.tree import Batch, Tree
from commitfs.vfs.content import Pending, TreePut, detach
from commitfs.vfs.node import FreshNames, InodeNumbers, Node, Paths
from commitfs.vfs.tree import check_name, live_tree, slots

MAX_CLEAN = 4096
"""Nodes kept in memory although nothing needs them; the tree has all of them."""
MAX_ATIMES = 65536
"""Access times set by hand and not committed yet (atime never commits) that are remembered."""
MAX_CHANGES = 64
"""Staged changes whose paths are kept for the facts of the commit."""
HIDDEN = frozenset((b".commits", b".versions"))


class Live:
    """State of the live tree and the steps all operations are made of."""

    def __init__(self, store: Store, now: Callable[[], int] = time.time_ns) -> None:
        self.store = store
        self.tree = live_tree(store)
        self.now = now
        self.nodes: dict[int, Node] = {}
        """Nodes that memory alone knows the truth about: open, pending, fresh, dead."""
        self.clean: OrderedDict[int, Node] = OrderedDict()
        self.atimes: OrderedDict[int, int] = OrderedDict()
        self.lookups: dict[int, int] = {}
        self.fresh = FreshNames()
        self.paths = Paths(self)
        self.blobs: dict[bytes, bytes] = {}
        """Values too long for a node, by tree key, until the next commit stores them."""
        self.changes: list[Change] = []
        self.changes_truncated = False
        self.broken: Exception | None = None
        self.on_dead: Callable[[Node, Pending | None], None] = lambda node, pending: None
        """Told of a node whose last name went, with what was pending until then."""
        self.numbers = InodeNumbers(self)
        self._missed: tuple[int, bytes, int, int, set[int]] = (0, b"", 0, 0, set())
        """The name `find` did not find last: directory, name, edits of the tree, and where it could be."""

    # Nodes

    def node(self, ino: int) -> Node:
        """Raises FsError ENOENT where there is no such inode."""
        node = self.nodes.get(ino)
        if node is not None:
            return node
        node = self.clean.get(ino)
        if node is not None:
            self.clean.move_to_end(ino)
            return node
        value = self.tree.get(inode_key(ino))
        if value is None:
            raise FsError(errno.ENOENT)
        saved = decode_inode(value)
        atime = self.atimes.get(ino)
        node = Node(ino, saved if atime is None else saved._replace(atime_ns=atime), saved)
        self.keep(node)
        return node

    def keep(self, node: Node) -> None:
        """Remember a node that the tree has too, as long as there is room."""
        self.clean[node.ino] = node
        if len(self.clean) > MAX_CLEAN:
            self.clean.popitem(last=False)

    def pin(self, node: Node) -> None:
        """Memory has to keep this node from now on."""
        self.clean.pop(node.ino, None)
        self.nodes[node.ino] = node

    def unpin(self, node: Node) -> None:
        """Let go of a node that nothing needs any more."""
        if node.handles or node.fresh is not None:
            return
        if node.dead:
            if not self.lookups.get(node.ino):
                self.nodes.pop(node.ino, None)
                old, node.pending = node.pending, None
                self.on_dead(node, old)
        elif node.pending is not None:
            return
        elif not self.fresh.count(node.ino) and self.nodes.pop(node.ino, None) is not None:
            self.keep(node)

    def forget(self, ino: int, count: int) -> None:
        left = self.lookups.get(ino, 0) - count
        if left > 0:
            self.lookups[ino] = left
            return
        self.lookups.pop(ino, None)
        node = self.nodes.get(ino)
        if node is not None:
            self.unpin(node)

    def follow(self) -> None:
        """The store has a newer commit, made by another process: look at that from now on."""
        old, self.tree = self.tree, live_tree(self.store)
        self._missed = (0, b"", 0, 0, set())
        self.paths.forget()
        self.clean.clear()
        for node in self.nodes.values():
            if node.dead:
                continue
            value = self.tree.get(inode_key(node.ino))
            if value is not None:
                node.attr = node.saved = decode_inode(value)
            else:
                # Removed by the writer, and open here.
                node.pending = detach(old, node.ino, node.attr.size, None)
                node.saved = None

    def looked_up(self, ino: int) -> None:
        self.lookups[ino] = self.lookups.get(ino, 0) + 1

    def directory(self, ino: int) -> Node:
        node = self.node(ino)
        if not node.is_dir:
            raise FsError(errno.ENOTDIR)
        return node

    def keep_atime(self, node: Node) -> None:
        """Remember an access time set by hand: it goes with the inode's next commit, and makes none."""
        if node.saved is not None and node.pending is None:
            self.atimes[node.ino] = node.attr.atime_ns
            if len(self.atimes) > MAX_ATIMES:
                self.atimes.popitem(last=False)

    def readlink(self, node: Node) -> bytes:
        if not stat.S_ISLNK(node.attr.mode):
            raise FsError(errno.EINVAL)
        return self.long_value(inode_key(node.ino), node.attr.target)

    # Changes

    def name_keys(self, parent: int, cookie: int) -> tuple[bytes, bytes, bytes]:
        """Keys that adding or removing a name changes."""
        return inode_key(parent), dentry_key(parent, cookie), tombstone_key(parent, cookie)

    @contextmanager
    def changing(self, *keys: bytes) -> Iterator[None]:
        """Round the part of an operation that changes the tree, `keys` above all (L4)."""
        self.check_writable()
        self.tree.touch(*keys)
        edits = self.tree.edits
        try:
            yield
        except BaseException as exc:
            if self.tree.edits != edits:
                self.half_done(exc)
            raise

    def half_done(self, exc: BaseException) -> None:
        """An operation ended with `exc` between two of its changes (L4)."""
        self.broken = exc if isinstance(exc, Exception) else RuntimeError("interrupted")

    def check_writable(self) -> None:
        if self.broken is not None:
            raise ReadOnlyError(f"a change failed half way ({self.broken}); mount the store again")
        if not self.store.writable:
            raise FsError(errno.EROFS)
        if self.store.latched is not None:
            raise ReadOnlyError(f"the store is read-only until it is opened again: {self.store.latched}")

    def save(self, node: Node, into: TreePut | None = None) -> None:
        """Put `attr` into the tree (or a batch for it), less what is pending (P4: size and times of a
        file wait with its contents)."""
        attr = node.attr
        saved = node.saved
        if saved is None:
            return
        changed = self.store.next_id
        if node.pending is not None:
            saved = attr._replace(
                size=saved.size,
                stored=saved.stored,
                atime_ns=saved.atime_ns,
                mtime_ns=saved.mtime_ns,
                ctime_ns=saved.ctime_ns,
                changed=changed,
            )
        else:
            saved = attr = attr.changed_in(changed)
            if fresh := self.fresh.count(node.ino):
                saved = attr._replace(size=attr.size - fresh)
        node.attr = attr
        node.saved = saved
        self.atimes.pop(node.ino, None)
        (into or self.tree).put(inode_key(node.ino), encode_inode(saved))

    def changed(self, op: str, path: bytes, size: int | None = None, source: bytes = b"") -> None:
        if len(self.changes) < MAX_CHANGES:
            self.changes.append(Change(op, path, size, source))
        else:
            self.changes_truncated = True

    @property
    def staged(self) -> bool:
        return self.tree.dirty

    # Names

    def find(self, parent: int, name: bytes) -> tuple[int, int] | None:
        """(inode, cookie) of a name, None where there is none."""
        node = self.fresh.find(parent, name)
        if node is not None and node.fresh is not None:
            return node.ino, node.fresh.cookie
        base = cookie_base(name)
        taken = set()
        for key, value in self.tree.scan(*slots(parent, base)):
            dentry = decode_dentry(value)
            if dentry.name == name:
                return dentry.ino, key_u64(key)
            taken.add(key_u64(key))
        self._missed = parent, name, self.tree.edits, base, taken
        return None

    def new_cookie(self, parent: int, name: bytes) -> int:
        """Where an entry of this name would be; FsError EEXIST where there is one."""
        missed = self._missed
        # The kernel has just looked the name up, as a rule, and nothing has changed since.
        if missed[:3] != (parent, name, self.tree.edits) or self.fresh.find(parent, name):
            if self.find(parent, name) is not None:
                raise FsError(errno.EEXIST)
            missed = self._missed
        base, taken = missed[3:]
        for cookie in range(base, base + COOKIE_SLOTS):
            if cookie not in taken and not self.fresh.taken(parent, cookie):
                return cookie
        raise FsError(errno.ENOSPC, "too many names of one hash in a directory")

    def add_name(
        self, parent: Node, name: bytes, cookie: int, node: Node, into: Tree | Batch | None = None
    ) -> None:
        """Stage a dentry.  The parent's and the inode's own attributes are the caller's."""
        if into is None:
            into = self.tree
        into.put(dentry_key(parent.ino, cookie), self._dentry(name, node))
        into.delete(tombstone_key(parent.ino, cookie))

    def remove_name(self, parent: Node, name: bytes, cookie: int, node: Node) -> None:
        """Stage the removal of a dentry, leaving a tombstone for those who look for old versions."""
        self.tree.delete(dentry_key(parent.ino, cookie))
        self.tree.put(tombstone_key(parent.ino, cookie), self._dentry(name, node))

    def _dentry(self, name: bytes, node: Node) -> bytes:
        """Of a name that the next commit adds or, as a tombstone, takes away."""
        kind = stat.S_IFMT(node.attr.mode) >> 12
        return encode_dentry(Dentry(kind, self.store.next_id, node.ino, name))

    def touch_parent(self, parent: Node, when: int, entries: int, links: int = 0) -> None:
        """A name was added (entries 1) or removed (-1): the directory's size and times follow."""
        attr = parent.attr
        parent.attr = attr.sized(attr.size + entries, when)
        if links:
            parent.attr = parent.attr._replace(nlink=attr.nlink + links)

    # Links

    def move_link(self, node: Node, old: tuple[int, int], new: tuple[int, int]) -> None:
        """The link of `node` at (parent, cookie) `old` is now at `new`."""
        if (node.attr.parent, node.attr.cookie) == old:
            node.attr = node.attr._replace(parent=new[0], cookie=new[1])
        else:
            self.tree.delete(backref_key(node.ino, *old))
            self.tree.put(backref_key(node.ino, *new), b"")

    def drop_link(self, node: Node, where: tuple[int, int], when: int) -> None:
        """One link less.  With the last one everything of the inode leaves the tree; `detach` has
        to have saved what open handles still need."""
        attr = node.attr
        if attr.nlink > 1:
            node.attr = attr = attr._replace(nlink=attr.nlink - 1, ctime_ns=when)
            if (attr.parent, attr.cookie) != where:
                self.tree.delete(backref_key(node.ino, *where))
            else:
                heir = next(self.tree.scan(*type_range(node.ino, BACKREF)), None)
                if heir is None:
                    raise CorruptError(f"inode {node.ino} has more links than names")
                parent, cookie = backref_of(heir[0])
                node.attr = attr._replace(parent=parent, cookie=cookie)
                self.tree.delete(heir[0])
            self.save(node)
            return
        self.bury(node, when)

    def bury(self, node: Node, when: int) -> None:
        node.xattrs = self.all_xattrs(node)
        node.attr = node.attr._replace(nlink=0, ctime_ns=when)
        node.saved = None
        node.fresh = None
        self.atimes.pop(node.ino, None)
        if node.is_dir:
            self.paths.forget()
        for key in [key for key, _ in self.tree.scan(*inode_range(node.ino))]:
            self.tree.delete(key)
            self.blobs.pop(key, None)
        self.pin(node)

    # Extended attributes

    def xattr(self, node: Node, name: bytes) -> bytes | None:
        if node.xattrs is not None:
            return node.xattrs.get(name)
        key = xattr_key(node.ino, name)
        value = self.tree.get(key)
        return None if value is None else self.long_value(key, decode_xattr(value))

    def xattr_names(self, node: Node) -> list[bytes]:
        if node.xattrs is not None:
            return list(node.xattrs)
        return [key[9:] for key, _ in self.tree.scan(*type_range(node.ino, XATTR))]

    def all_xattrs(self, node: Node) -> dict[bytes, bytes]:
        if node.xattrs is not None:
            return node.xattrs
        found = {}
        for key, value in self.tree.scan(*type_range(node.ino, XATTR)):
            try:
                found[key[9:]] = self.long_value(key, decode_xattr(value))
            except (CorruptError, OSError):
                continue  # damage is no reason why a file could not be removed
        return found

    def long_value(self, key: bytes, value: bytes | Blob) -> bytes:
        """The bytes of a value that may be a blob, stored already or not."""
        if not isinstance(value, Blob):
            return value
        waiting = self.blobs.get(key)
        return waiting if waiting is not None else self.store.read_checked(*value, "a long value")

    def save_xattr(self, ino: int, name: bytes, value: bytes) -> None:
        key = xattr_key(ino, name)
        self.blobs.pop(key, None)
        if len(value) <= INLINE_MAX:
            self.tree.put(key, encode_xattr(value))
        else:
            self.blobs[key] = value
            self.tree.put(key, encode_xattr(Blob(0, len(value), 0)))


__all__ = ["HIDDEN", "Live", "Node", "check_name"]
