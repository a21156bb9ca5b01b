"""The commits that changed one path, found by hopping from version to version.

What a path means at a commit hangs on the dentries along it and on the inode it ends in.  Each knows
the commit that last changed it, and a name that is gone has left a tombstone that knows when.  The
newest of these ids is the commit in which the path last changed; the next hop starts just before it.
So the cost is that of the versions, not of the commits.

For a directory this finds changes of its own.  What changed somewhere below it is found by comparing
each commit's tree with the one before, while there was a directory.
"""

import stat
from collections.abc import Iterator
from typing import NamedTuple

from commitfs.errors import CorruptError
from commitfs.format.inode import decode_dentry, decode_inode
from commitfs.format.keys import (
    BACKREF,
    COOKIE_SLOTS,
    ROOT_INO,
    backref_of,
    cookie_base,
    inode_key,
    split_key,
    tombstone_key,
    type_range,
)
from commitfs.format.node import NO_ROOT
from commitfs.format.record import Record
from commitfs.store.store import Store
from commitfs.store.tree import Tree, diff
from commitfs.vfs.tree import find_dentry

DIRECTORY = stat.S_IFDIR >> 12


class State(NamedTuple):
    """What a path is at one commit."""

    ino: int
    """0: nothing."""
    is_dir: bool
    changed: int
    """The newest commit that can have changed it; 0: none ever did."""


def changes_of(store: Store, path: bytes) -> Iterator[Record]:
    """Commits that changed `path` (relative, not empty), newest first.  Symlinks are not followed.

    A commit whose record is damaged is left out; the store reports it.
    """
    parts = path.split(b"/")
    record = store.head
    while record is not None:
        state = state_at(store.tree(record), parts)
        since = min(max(state.changed, int(store.oldest_id)), int(record.id))
        if state.is_dir:
            yield from _below(store, state.ino, int(record.id), since)
        if state.changed == 0:
            return
        changed = _at_or_before(store, since)
        before = _at_or_before(store, since - 1)
        if changed is not None and changed.id == since:
            earlier = state_at(store.tree(before), parts)
            if state.ino or earlier.ino:
                yield changed
        record = before


def _at_or_before(store: Store, commit: int) -> Record | None:
    """The newest commit up to an id that can be read; not one that only stands for one lost."""
    for number in range(commit, int(store.oldest_id) - 1, -1):
        try:
            record = store.record(number)
        except CorruptError:
            continue
        if record.root != NO_ROOT:
            return record
    return None


def state_at(tree: Tree, parts: list[bytes]) -> State:
    ino, changed = ROOT_INO, 0
    is_dir = True
    for name in parts:
        found = find_dentry(tree, ino, name) if is_dir else None
        if found is None:
            return State(0, False, max(changed, _deleted(tree, ino, name)))
        dentry = found[1]
        ino, is_dir = dentry.ino, dentry.kind == DIRECTORY
        changed = max(changed, dentry.changed)
    value = tree.get(inode_key(ino))
    if value is None:
        raise CorruptError(f"inode {ino} is missing")
    return State(ino, is_dir, max(changed, decode_inode(value).changed))


def _deleted(tree: Tree, directory: int, name: bytes) -> int:
    """The commit that removed a name from a directory; 0: it never was there."""
    base = cookie_base(name)
    low, high = tombstone_key(directory, base), tombstone_key(directory, base + COOKIE_SLOTS)
    stones = (decode_dentry(value) for _, value in tree.scan(low, high))
    return max((stone.changed for stone in stones if stone.name == name), default=0)


def _below(store: Store, directory: int, newest: int, since: int) -> Iterator[Record]:
    """Commits of (since, newest] that changed something below a directory, newest first.

    Their trees are compared, which reads only what differs: facts may be incomplete, and name a file
    with several links by one of them.
    """
    after: Record | None = None
    tree = store.tree(None)
    for record in store.records(newest):
        if record.root == NO_ROOT:
            continue
        before = store.tree(record)
        if after is not None and _differs_below(store, before, tree, directory):
            yield after
        if record.id <= since:
            return
        after, tree = record, before


def _differs_below(store: Store, before: Tree, after: Tree, directory: int) -> bool:
    seen: set[int] = set()
    for key, _, _ in diff(store.nodes, before.root, after.root):
        ino = split_key(key)[0]
        if ino and ino not in seen:
            seen.add(ino)
            if _is_below(after, ino, directory) or _is_below(before, ino, directory):
                return True
    return False


def _is_below(tree: Tree, ino: int, directory: int) -> bool:
    """Whether any name of an inode lies below a directory."""
    value = tree.get(inode_key(ino))
    if value is None:
        return False
    parents = [backref_of(key)[0] for key, _ in tree.scan(*type_range(ino, BACKREF))]
    parents.append(decode_inode(value).parent)
    met = {0}
    for parent in parents:
        while parent not in met:  # as it stays only where damage made directories lie in themselves
            if parent == directory:
                return True
            met.add(parent)
            value = tree.get(inode_key(parent))
            parent = 0 if value is None else decode_inode(value).parent
    return False
