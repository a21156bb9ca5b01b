"""The copy-on-write B+tree: one ordered map from keys to values, every commit a root of it.

Values are at most 512 bytes, keys 1 to 264 bytes.  All work on nodes is done in C (native/tree.c); here
stand the loop that loads what C finds missing, the iterators, and what is given to the rest of the store.
One tree is used by one thread at a time.
"""

import errno
import struct
from collections.abc import Callable, Iterator
from typing import Any

from commitfs.errors import CorruptError
from commitfs.format.node import DIRTY, KEY_MAX, Entry, Root
from commitfs.native import ffi, lib
from commitfs.store.nodes import Nodes, fail

_get, _put, _delete = lib.cfs_tree_get, lib.cfs_tree_put, lib.cfs_tree_delete
_touch, _apply = lib.cfs_tree_touch, lib.cfs_tree_apply
_forward, _backward = lib.cfs_tree_forward, lib.cfs_tree_backward
_build_begin, _build_store = lib.cfs_tree_build_begin, lib.cfs_tree_build_store
_build_run, _build_finish = lib.cfs_tree_build_run, lib.cfs_tree_build_finish
BATCH_MAX = lib.CFS_TOUCH_MAX
_NO_VALUE = 0xFFFF
_ABSENT, _MISSING = -errno.ENOENT, -errno.EAGAIN
_lengths = struct.Struct("<HH").unpack_from
_pack_lengths = struct.Struct("<HH").pack
_LENGTH = tuple(size.to_bytes(2, "little") for size in range(KEY_MAX + 1))


class Batch:
    """Puts and deletes to be made together (`Tree.apply`), in their order."""

    __slots__ = ("edits",)

    def __init__(self) -> None:
        self.edits: list[bytes] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.edits.append(_pack_lengths(len(key), len(value)) + key + value)

    def delete(self, key: bytes) -> None:
        self.edits.append(_pack_lengths(len(key), _NO_VALUE) + key)


class Tree:
    """A tree and the changes made to it since its last build.

    Any call may raise `CorruptError` or `OSError` because of a node that cannot be read; a put or delete
    that does has changed nothing (T1).
    """

    __slots__ = ("_out", "_tree", "nodes", "root")

    root: Root
    """Of the last build, or what the tree was opened with."""

    def __init__(self, nodes: Nodes, root: Root) -> None:
        if root.offset >= DIRTY:
            raise CorruptError("tree root", root.offset)
        self.nodes = nodes
        self.root = root
        tree = lib.cfs_tree_new(nodes.handle, root.offset, root.length, root.level, root.crc)
        if not tree:
            raise MemoryError
        self._tree: Any = ffi.gc(tree, lib.cfs_tree_free)
        self._out: Any = ffi.buffer(tree.out)

    @property
    def dirty(self) -> bool:
        """Whether anything was changed since the last build."""
        return self._tree.changed != 0  # type: ignore[no-any-return]

    @property
    def edits(self) -> int:
        """How many puts and deletes have changed something, ever."""
        return self._tree.edits  # type: ignore[no-any-return]

    def touch(self, *keys: bytes) -> None:
        """Have all nodes at hand that changes of these keys need: they will not fail for want of one."""
        lengths = _LENGTH
        for at in range(0, len(keys), BATCH_MAX):
            packed = b"".join([lengths[len(key)] + key for key in keys[at : at + BATCH_MAX]])
            while rc := _touch(self._tree, packed, len(packed)):
                self._load(rc)

    def _load(self, rc: int) -> None:
        """Load the node C asks for; raise if `rc` says something else."""
        if rc != _MISSING:
            fail(rc)
        need = self._tree.need
        self.nodes.load(Root(need.offset, need.length, need.level, need.crc))

    def get(self, key: bytes) -> bytes | None:
        size = _get(self._tree, key, len(key))
        while size < 0:
            if size == _ABSENT:
                return None
            self._load(size)
            size = _get(self._tree, key, len(key))
        value: bytes = self._out[:size]
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`.  Setting what is there already changes nothing.  `ValueError` for sizes."""
        while rc := _put(self._tree, key, len(key), value, len(value)):
            self._load(rc)

    def delete(self, key: bytes) -> bool:
        """Take `key` out; False if it is not there."""
        while rc := _delete(self._tree, key, len(key)):
            if rc == _ABSENT:
                return False
            self._load(rc)
        return True

    def apply(self, batch: Batch) -> None:
        """Make the changes of a batch; a key that is not there is deleted already.

        Up to BATCH_MAX of them are all made, or none because of a node that cannot be read (T6).  More are
        made in several steps, and for want of memory any may be the last (`edits` tells).
        """
        edits = batch.edits
        for at in range(0, len(edits), BATCH_MAX):
            packed = b"".join(edits[at : at + BATCH_MAX])
            while rc := _apply(self._tree, packed, len(packed)):
                self._load(rc)

    def scan(self, lo: bytes, hi: bytes | None = None) -> Iterator[Entry]:
        """Entries with lo <= key < hi, ascending."""
        key, beyond = lo, 0
        bound, bound_size = (ffi.NULL, 0) if hi is None else (hi, len(hi))
        while True:
            while (size := _forward(self._tree, key, len(key), beyond, bound, bound_size)) < 0:
                self._load(size)
            if size == 0:
                return
            body = self._out[:size]
            at = 0
            while at < size:
                key_size, value_size = _lengths(body, at)
                middle = at + 4 + key_size
                at = middle + value_size
                following = body[middle - key_size : middle]
                if hi is not None and following >= hi:
                    return
                if following < key or (beyond and following == key):
                    raise CorruptError("the tree's order is damaged")
                key, beyond = following, 1
                yield key, body[middle:at]

    def scan_back(self, hi: bytes, lo: bytes = b"") -> Iterator[Entry]:
        """Entries with lo <= key < hi, descending."""
        while True:
            while (size := _backward(self._tree, hi, len(hi), lo, len(lo))) < 0:
                self._load(size)
            if size == 0:
                return
            body = self._out[:size]
            entries = []
            at = 0
            while at < size:
                key_size, value_size = _lengths(body, at)
                middle = at + 4 + key_size
                at = middle + value_size
                entries.append((body[middle - key_size : middle], body[middle:at]))
            for entry in reversed(entries):
                if entry[0] < lo:
                    return
                if entry[0] >= hi:
                    raise CorruptError("the tree's order is damaged")
                hi = entry[0]
                yield entry

    def estimate(self) -> int:
        """Upper bound of the bytes a build now would place, each node rounded up to a multiple of 8."""
        return self._tree.estimate  # type: ignore[no-any-return]

    def build(self, place: Callable[[bytes], int], at: int = 0) -> Root:
        """Store what was changed: calls `place` with each changed node, children first, which returns the log
        offset given to it.  The tree is clean afterwards and the new nodes are in the cache, readable before
        they are durable.

        With `at`, the offset that `place` will give next, and will continue from, it is called once with all.

        If `place` raises, the tree is as it was, and dirty (T2).
        """
        tree = self._tree
        if rc := _build_begin(tree):
            fail(rc)
        if at:
            size = _build_run(tree, at, 0)
            if size < 0:
                fail(size)
            if size:
                placed = place(ffi.buffer(tree.run, size)[:])
                assert placed == at
            _build_finish(tree)
            return self._built()
        offset = 0
        while size := _build_store(tree, offset):
            if size < 0:
                fail(size)
            offset = place(self._out[:size])
        return self._built()

    def build_with(self, make: Callable[[Any], int]) -> bytes:
        """Change and build the tree by a function in C that does both (`cfs_new_file`): what it is to store,
        in one piece.  It is called again after each node that it asks for."""
        tree = self._tree
        while (size := make(tree)) < 0:
            self._load(size)
        self._built()
        return ffi.buffer(tree.run, size)[:]  # type: ignore[no-any-return]

    def _built(self) -> Root:
        root = self._tree.root
        self.root = Root(root.offset, root.length, root.level, root.crc)
        return self.root


Gap = Callable[[bytes, bytes | None, CorruptError], None]
"""Told of a node that cannot be read: the lowest key that can be in it, the lowest above it (None: it is
the last), and why."""


def diff(
    nodes: Nodes, a: Root, b: Root, *, gap_a: Gap | None = None, gap_b: Gap | None = None
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Keys at which two trees differ, ascending, with the value in `a` and in `b` (None: absent).

    Nodes that both share are neither read nor looked at.  CorruptError where a node cannot be read; or
    `gap_a` and `gap_b`, where given, are told, and the node counts as empty in that tree.
    """
    left, right = _Side(nodes, a, gap_a), _Side(nodes, b, gap_b)
    while left.rest or right.rest:
        x, y = left.next(), right.next()
        # A node is opened only when nothing can be said without: whatever is met on one side before the
        # lowest key of a node on the other is there alone, and the node may yet be met on both.
        if isinstance(x, _Below):
            if isinstance(y, _Below):
                if x.at == y.at:
                    left.rest.pop()
                    right.rest.pop()
                    continue
                first, second = (x.low, -x.at.level), (y.low, -y.at.level)
                if first <= second:
                    left.open(x)
                if second <= first:
                    right.open(y)
            elif y is not None and y[0] < x.low:
                right.rest.pop()
                yield y[0], None, y[1]
            else:
                left.open(x)
        elif isinstance(y, _Below):
            if x is not None and x[0] < y.low:
                left.rest.pop()
                yield x[0], x[1], None
            else:
                right.open(y)
        elif x is not None and (y is None or x[0] < y[0]):
            left.rest.pop()
            yield x[0], x[1], None
        elif y is not None and (x is None or y[0] < x[0]):
            right.rest.pop()
            yield y[0], None, y[1]
        elif x is not None and y is not None:
            left.rest.pop()
            right.rest.pop()
            if x[1] != y[1]:
                yield x[0], x[1], y[1]


class _Below:
    """A node not opened yet, and the lowest key that can be in it."""

    __slots__ = ("at", "low")

    def __init__(self, at: Root, low: bytes) -> None:
        self.at = at
        self.low = low


class _Side:
    """What one of two compared trees has still to show: nodes and entries in order, the next one last."""

    def __init__(self, nodes: Nodes, root: Root, gap: Gap | None) -> None:
        self._nodes = nodes
        self._gap = gap
        self.rest: list[_Below | Entry] = [_Below(root, b"")] if root.offset else []

    def next(self) -> _Below | Entry | None:
        return self.rest[-1] if self.rest else None

    def open(self, node: _Below) -> None:
        """Put what is in the next node in its place."""
        self.rest.pop()
        try:
            if node.at.level == 0:
                self.rest.extend(reversed(self._nodes.entries(node.at)))
            else:
                below = self._nodes.children(node.at)
                self.rest.extend(_Below(at, low or node.low) for low, at in reversed(below))
        except CorruptError as error:
            if self._gap is None:
                raise
            after = self.next()
            high = after.low if isinstance(after, _Below) else after[0] if after is not None else None
            self._gap(node.low, high, error)


def readable(nodes: Nodes, root: Root, lo: bytes, hi: bytes, gap: Gap) -> Iterator[Entry]:
    """Entries of a tree with lo <= key < hi, ascending, as far as they can be read; `gap` is told of the
    nodes in which others of them may be."""
    waiting: list[tuple[Root, bytes, bytes | None]] = [(root, b"", None)] if root.offset else []
    while waiting:
        at, low, high = waiting.pop()
        try:
            if at.level == 0:
                yield from (entry for entry in nodes.entries(at) if lo <= entry[0] < hi)
                continue
            below = nodes.children(at)
        except CorruptError as error:
            gap(low, high, error)
            continue
        ends = [key for key, _ in below[1:]]
        for (key, child), end in reversed(list(zip(below, [*ends, high], strict=True))):
            if key < hi and (end is None or end > lo):
                waiting.append((child, key or low, end))
