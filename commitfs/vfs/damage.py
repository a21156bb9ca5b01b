"""Which commits damage concerns, and which paths in them.

A finding says where damage was first met.  What is damaged may be shared by many later commits: here
each commit is asked which of its nodes and bytes are among what was found.  A subtree is looked at once,
however many commits share it.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from commitfs.errors import CorruptError
from commitfs.format.extent import UNIT, decode_extent
from commitfs.format.inode import DIR_KIND, Blob, decode_dentry, decode_inode, decode_xattr
from commitfs.format.keys import (
    BACKREF,
    DENTRY,
    EXTENT,
    INODE,
    ROOT_INO,
    XATTR,
    backref_of,
    dentry_key,
    inode_key,
    inode_range,
    split_key,
    type_range,
)
from commitfs.format.node import Root
from commitfs.format.record import Record
from commitfs.store.check import Finding, Seen, Severity
from commitfs.store.salvage import commits_in, first_before
from commitfs.store.store import Store
from commitfs.store.tree import Tree, readable
from commitfs.vfs.paths import joined, path_in

Range = tuple[bytes, bytes | None]
"""Keys from the first on, below the second (None: all above)."""
Gap = tuple[int, Range]
"""Offset of a node that cannot be read, and the keys that may be in it."""


class Damaged(NamedTuple):
    """Commits in a row that damage concerns in the same way."""

    first: int
    last: int
    lost: bool
    """Their records cannot be read, or not even their root directories."""
    paths: tuple[bytes, ...]
    """What cannot be read in each of them, sorted; of a directory some of its names, or all below it.  None
    where only what was recorded about the commits is damaged."""


def damaged_commits(store: Store, findings: Iterable[Finding]) -> Iterator[Damaged]:
    """What the damage that `check_store` and `check_trees` found means for each commit, oldest first."""
    run: Damaged | None = None
    for commit, lost, paths in _Damage(store, findings).run():
        if run is not None and run[1:] == (commit - 1, lost, paths):
            run = run._replace(last=commit)
            continue
        if run is not None:
            yield run
        run = Damaged(commit, commit, lost, paths)
    if run is not None:
        yield run


class _Damage:
    def __init__(self, store: Store, findings: Iterable[Finding]) -> None:
        self.store = store
        self.places: set[int] = set()
        """Where nodes and bytes of files are that are damaged."""
        self.told: dict[int, set[bytes]] = {}
        """Paths by the commit in which something was found."""
        for finding in findings:
            if finding.severity is Severity.DAMAGE:
                self.places.add(finding.offset)
                self.told.setdefault(finding.commit, set()).add(finding.path)
        self._seen = Seen()
        self._tainted: set[tuple[int, int]] = set()
        """Nodes that are damaged, or have something below them that is."""
        self._gaps: dict[frozenset[Gap], list[tuple[int, bytes]]] = {}
        """What each set of damaged nodes hides: directory, and name in it or b""."""

    def run(self) -> Iterator[tuple[int, bool, tuple[bytes, ...]]]:
        """(commit, lost, paths) of each one that is not sound."""
        last = 0
        for record in commits_in(self.store):
            if not last:
                last = first_before(self.store, record)
            for commit in range(last + 1, record.id):
                yield commit, True, ()
            last = record.id
            paths = self._paths(record)
            if paths is None:
                yield record.id, True, ()
            elif paths or record.id in self.told:
                paths.update(path for path in self.told.get(record.id, ()) if path)
                yield record.id, False, tuple(sorted(paths))
        for commit in sorted(self.told):
            if commit > last > 0:
                yield commit, True, ()

    # -- one commit ------------------------------------------------------------------------------

    def _paths(self, record: Record) -> set[bytes] | None:
        """What cannot be read; None: nothing can, for want of a root directory."""
        if not record.root.offset or not self._has_damage(record.root):
            return set()
        try:
            tree = self.store.tree(record)
        except CorruptError:
            return None  # its root is none of a log
        inodes: set[int] = set()
        gaps: list[Gap] = []
        if not _reads(self.store, tree, ROOT_INO):
            return None
        self._collect(record.root, b"", None, inodes, gaps)
        paths: set[bytes] = set()
        for ino in inodes:
            paths.update(_names_of(self.store, tree, ino))
        if gaps:
            key = frozenset(gaps)
            if key not in self._gaps:
                self._gaps[key] = list(_hidden(self.store, tree, [bounds for _, bounds in gaps]))
            for directory, name in self._gaps[key]:
                base = path_in(tree, directory)
                paths.add(joined(base, name) if name else base)
            # What is in a node that commits share is the same in all of them, but for those at its edges.
            for edge in {key for _, bounds in gaps for key in bounds if key}:
                ino = int.from_bytes(edge[:8].ljust(8, b"\0"), "big")
                if _has_inode(tree, ino) and not _reads(self.store, tree, ino):
                    paths.update(_names_of(self.store, tree, ino))
        return paths

    def _has_damage(self, at: Root) -> bool:
        place = (at.offset, at.crc)
        if place in self._tainted:
            return True
        if not self._seen.add(*place):
            return False
        try:
            entries = self.store.nodes.entries(at)
        except CorruptError:
            self._tainted.add(place)
            return True
        found = False
        for key, value in entries:  # all of them: those that are looked at are not looked at again
            below = self._has_damage(Root.unpack(value)) if at.level else self._is_damaged(key, value)
            found = found or below
        if found:
            self._tainted.add(place)
        return found

    def _is_damaged(self, key: bytes, value: bytes) -> bool:
        """Whether bytes that an entry refers to are damaged, or it makes no sense."""
        if len(key) < 9:
            return False
        kind = split_key(key)[1]
        try:
            if kind == EXTENT:
                extent = decode_extent(value)
                return any(extent.offset + at in self.places for at in range(0, extent.run, UNIT))
            blob: object = None
            if kind == XATTR:
                blob = decode_xattr(value)
            elif kind == INODE:
                blob = decode_inode(value).target
            elif kind == DENTRY:
                decode_dentry(value)
        except CorruptError:
            return True
        return isinstance(blob, Blob) and blob.offset in self.places

    def _collect(self, at: Root, low: bytes, high: bytes | None, inodes: set[int], gaps: list[Gap]) -> None:
        """Inodes with something damaged, and nodes that are, below a node with damage."""
        try:
            entries = self.store.nodes.entries(at)
        except CorruptError:
            gaps.append((at.offset, (low, high)))
            return
        if not at.level:
            inodes.update(split_key(key)[0] for key, value in entries if self._is_damaged(key, value))
            return
        ends = [key for key, _ in entries[1:]]
        for (key, value), end in zip(entries, [*ends, high], strict=True):
            child = Root.unpack(value)
            if (child.offset, child.crc) in self._tainted:
                self._collect(child, key or low, end, inodes, gaps)


def _names_of(store: Store, tree: Tree, ino: int) -> Iterator[bytes]:
    """Paths of an inode by all its names, as far as they can be told."""
    yield path_in(tree, ino)
    low, high = type_range(ino, BACKREF)
    for key, _ in readable(store.nodes, tree.root, low, high, lambda *gap: None):
        parent, cookie = backref_of(key)
        try:
            value = tree.get(dentry_key(parent, cookie))
        except CorruptError:
            continue
        if value is not None:
            yield joined(path_in(tree, parent), decode_dentry(value).name)


def _hidden(store: Store, tree: Tree, gaps: list[Range]) -> Iterator[tuple[int, bytes]]:
    """(directory, name) of what cannot be read because of damaged nodes; name b"" for a directory some of
    whose names are hidden."""

    def reaches(ino: int) -> bool:
        first, end = inode_range(ino)
        return any(low < end and (high is None or first < high) for low, high in gaps)

    waiting, met = [ROOT_INO], {ROOT_INO}
    while waiting:
        directory = waiting.pop()
        holes: list[Range] = []

        def gap(at: bytes, end: bytes | None, _why: CorruptError, holes: list[Range] = holes) -> None:
            holes.append((at, end))

        for _, value in readable(store.nodes, tree.root, *type_range(directory, DENTRY), gap):
            dentry = decode_dentry(value)
            if reaches(dentry.ino) and not _reads(store, tree, dentry.ino):
                yield directory, dentry.name
            elif dentry.kind == DIR_KIND and dentry.ino not in met:
                met.add(dentry.ino)
                waiting.append(dentry.ino)
        if holes:
            yield directory, b""


def _has_inode(tree: Tree, ino: int) -> bool:
    try:
        return tree.get(inode_key(ino)) is not None
    except CorruptError:
        return False


def _reads(store: Store, tree: Tree, ino: int) -> bool:
    """Whether the inode can be read, and which bytes its contents and attributes are."""
    try:
        value = tree.get(inode_key(ino))
        if value is None:
            return False
        decode_inode(value)
        for kind in (EXTENT, XATTR):
            for _ in tree.scan(*type_range(ino, kind)):
                pass
    except CorruptError:
        return False
    return True


__all__ = ["Damaged", "damaged_commits"]
