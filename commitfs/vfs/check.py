"""Is every commit one consistent tree (P3), and is every byte of its files whole (P7)?

A commit is compared with its parent and only what differs is looked at, so each subtree is verified
once however many commits share it.  That is enough because all rules tie a key to keys it names: if
they held in the parent, they can only be broken where something changed.  Counts (links, entries,
stored bytes) are checked by their differences.

Damage of one commit hides nothing of the others, nor of the parts of its own tree that can be read.
"""

import stat
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby

from commitfs.errors import CorruptError, NotFoundError
from commitfs.format.extent import UNIT, Extent, decode_extent
from commitfs.format.inode import (
    DIR_KIND,
    Blob,
    Dentry,
    Inode,
    decode_allocator,
    decode_dentry,
    decode_inode,
    decode_xattr,
)
from commitfs.format.keys import (
    ALLOCATOR,
    BACKREF,
    COOKIE_SLOTS,
    DENTRY,
    EXTENT,
    INODE,
    ROOT_INO,
    TOMBSTONE,
    XATTR,
    backref_key,
    backref_of,
    cookie_base,
    dentry_key,
    extent_key,
    inode_key,
    inode_range,
    key_u64,
    split_key,
    type_range,
)
from commitfs.format.node import DIRTY, KEY_MAX, NO_ROOT
from commitfs.format.record import RECORD_SIZE, Record
from commitfs.store.check import Finding, Seen, Severity
from commitfs.store.store import Store
from commitfs.store.tree import diff, readable
from commitfs.vfs.paths import joined, path_in

Change = tuple[bytes, bytes | None, bytes | None]
"""(key, old value, new value)"""
MAX_DEPTH = 1 << 20


def check_trees(
    store: Store, *, data: bool = True, progress: Callable[[int, int], None] | None = None
) -> Iterator[Finding]:
    """What is wrong with the trees of the commits, oldest first, and with the files' bytes if `data`.

    `progress(commit id, newest id)` is called before each commit.  The caller checks the records and
    nodes themselves with `check_store`.
    """
    if store.head is None:
        return
    units = Seen() if data else None
    newest = int(store.head.id)
    room = int(store.published_end) // RECORD_SIZE
    """More commits than that no store of its size has, whatever ids its records say."""
    last: Record | None = None
    for commit in range(max(int(store.oldest_id), newest - room), newest + 1):
        if progress is not None:
            progress(commit, newest)
        try:
            record = store.record(commit)
        except CorruptError as exc:
            yield Finding(Severity.DAMAGE, commit, exc.offset, b"", f"its record cannot be read: {exc}")
            continue
        parent = last if last is not None and last.id == record.parent_id else _parent(store, record)
        if record.root.offset >= DIRTY:
            yield Finding(Severity.DAMAGE, commit, record.offset, b"", "its root lies outside the log")
            continue
        yield from _CommitCheck(store, record, parent, units).run()
        last = record


def _parent(store: Store, record: Record) -> Record | None:
    """The parent, None where there is none, where it is not in this log, and where it is damaged."""
    try:
        parent = store.record(record.parent_id) if record.parent else None
    except (CorruptError, NotFoundError):
        return None
    return parent if parent is not None and parent.root.offset < DIRTY else None


class _CommitCheck:
    """One commit against its parent."""

    def __init__(self, store: Store, record: Record, parent: Record | None, units: Seen | None) -> None:
        self.store = store
        self.commit = int(record.id)
        self.tree = store.tree(record)
        self.before = store.tree(parent)
        self.units = units
        self.whole = parent is not None or not record.parent_id
        """The comparison with the parent sees everything, so that counts mean something."""

    def run(self) -> Iterator[Finding]:
        if self.tree.root == self.before.root == NO_ROOT:
            return  # a commit of bytes alone
        try:
            yield from self._groups(diff(self.store.nodes, self.before.root, self.tree.root))
        except CorruptError as exc:
            yield self._damage(f"cannot be compared with its parent: {exc}", offset=exc.offset)
            self.whole = False
            yield from self._groups(self._readable())
        root = self._guarded_inode(ROOT_INO)
        if root is None or not stat.S_ISDIR(root.mode) or root.parent:
            yield self._damage("has no root directory")

    def _readable(self) -> Iterator[Change]:
        """All of the tree that can be read, as if it were new."""
        everything = readable(self.store.nodes, self.tree.root, b"", b"\xff" * KEY_MAX, lambda *gap: None)
        return ((key, None, value) for key, value in everything)

    def _groups(self, changes: Iterator[Change]) -> Iterator[Finding]:
        for ino, group in groupby(self._known(changes), key=lambda change: split_key(change[0])[0]):
            if ino == 0:
                yield from self._check_common(group)
            else:
                yield from _InodeCheck(self, ino).run(group)

    def _known(self, changes: Iterator[Change]) -> Iterator[Change]:
        return (change for change in changes if len(change[0]) >= 9)

    def _check_common(self, group: Iterator[Change]) -> Iterator[Finding]:
        for key, _, value in group:
            if split_key(key)[1] == ALLOCATOR and value is not None:
                try:
                    decode_allocator(value)
                except CorruptError as exc:
                    yield self._damage(str(exc))

    # -- what the checks of inodes use -----------------------------------------------------------

    def inode(self, ino: int) -> Inode | None:
        value = self.tree.get(inode_key(ino))
        return None if value is None else decode_inode(value)

    def dentry(self, parent: int, cookie: int) -> Dentry | None:
        value = self.tree.get(dentry_key(parent, cookie))
        return None if value is None else decode_dentry(value)

    def fits(self, changed: int) -> bool:
        """May a key that was looked at say that it changed in this commit?"""
        return changed == self.commit if self.whole else changed <= self.commit

    def _guarded_inode(self, ino: int) -> Inode | None:
        try:
            return self.inode(ino)
        except CorruptError:
            return None

    def _damage(self, message: str, *, ino: int = 0, name: bytes = b"", offset: int = -1) -> Finding:
        path = path_in(self.tree, ino) if ino else b""
        if name:
            path = joined(path, name)
        return Finding(Severity.DAMAGE, self.commit, offset, path, message)

    def check_blob(self, blob: Blob, what: str) -> str | None:
        """What is wrong with bytes kept outside the tree."""
        if self.units is None or not self.units.add(blob.offset, blob.crc):
            return None
        try:
            self.store.read_checked(blob.offset, blob.length, blob.crc, what)
        except CorruptError as exc:
            return str(exc)
        return None

    def check_units(self, extent: Extent) -> Iterator[tuple[int, str]]:
        """(log offset, message) of the units of an extent that are damaged."""
        if self.units is None:
            return
        for index, crc in enumerate(extent.crcs):
            offset = extent.offset + index * UNIT
            if not self.units.add(offset, crc):
                continue
            try:
                self.store.read_checked(offset, min(UNIT, extent.run - index * UNIT), crc)
            except CorruptError as exc:
                yield offset, str(exc)


class _InodeCheck:
    """All that changed of one inode between two trees."""

    def __init__(self, commit: _CommitCheck, ino: int) -> None:
        self.c = commit
        self.ino = ino
        self.old: Inode | None = None
        self.new: Inode | None = None
        self.delta: Counter[str] = Counter()

    def run(self, group: Iterator[Change]) -> Iterator[Finding]:
        first = True
        for change in group:
            try:
                if first:
                    self.new = self.c.inode(self.ino)
                    self.old = self.new
                    first = False
                yield from self._check_change(change)
            except CorruptError as exc:
                yield self._wrong(str(exc), offset=exc.offset)
        try:
            yield from self._check_inode()
        except CorruptError as exc:
            yield self._wrong(str(exc), offset=exc.offset)

    def _check_change(self, change: Change) -> Iterator[Finding]:
        key, old, new = change
        kind = split_key(key)[1]
        if kind == INODE:
            self.old = None if old is None else decode_inode(old)
            if self.new is not None and not self.c.fits(self.new.changed):
                yield self._stale("it", self.new.changed)
        elif kind == DENTRY:
            yield from self._check_dentry(key_u64(key), old, new)
        elif kind == EXTENT:
            yield from self._check_extent(key, old, new)
        elif kind == XATTR and new is not None:
            value = decode_xattr(new)
            if isinstance(value, Blob) and (wrong := self.c.check_blob(value, "an extended attribute")):
                yield self._wrong(wrong, offset=value.offset)
        elif kind == BACKREF:
            self.delta["backrefs"] += (new is not None) - (old is not None)
            if new is not None:
                parent, cookie = backref_of(key)
                dentry = self.c.dentry(parent, cookie)
                if dentry is None or dentry.ino != self.ino:
                    yield self._wrong(f"a link of it in directory {parent} is missing")
        elif kind == TOMBSTONE and new is not None:
            stone = decode_dentry(new)
            if not self.c.fits(stone.changed):
                yield self._stale("the deletion", stone.changed, stone.name)
            if self.c.dentry(self.ino, key_u64(key)) is not None:
                yield self._wrong("the name is both there and deleted", name=stone.name)

    def _check_dentry(self, cookie: int, old: bytes | None, new: bytes | None) -> Iterator[Finding]:
        before = None if old is None else decode_dentry(old)
        after = None if new is None else decode_dentry(new)
        if before is not None:
            self.delta["entries"] -= 1
            self.delta["subdirs"] -= before.kind == DIR_KIND
            if after is None or after.ino != before.ino:
                yield from self._check_removed(before, cookie)
        if after is None:
            return
        self.delta["entries"] += 1
        self.delta["subdirs"] += after.kind == DIR_KIND
        name = after.name
        if not self.c.fits(after.changed):
            yield self._stale("the name", after.changed, name)
        if not 0 <= cookie - cookie_base(name) < COOKIE_SLOTS:
            yield self._wrong(f"cookie {cookie} is none of this name's", name=name)
        child = self.c.inode(after.ino)
        if child is None:
            yield self._wrong(f"its inode {after.ino} is missing", name=name)
            return
        if stat.S_IFMT(child.mode) >> 12 != after.kind:
            yield self._wrong(f"its inode {after.ino} is of another type", name=name)
        known = (child.parent, child.cookie) == (self.ino, cookie)
        if not known and self.c.tree.get(backref_key(after.ino, self.ino, cookie)) is None:
            yield self._wrong(f"its inode {after.ino} does not know this name", name=name)

    def _check_removed(self, gone: Dentry, cookie: int) -> Iterator[Finding]:
        child = self.c.inode(gone.ino)
        if child is not None and (child.parent, child.cookie) == (self.ino, cookie):
            yield self._wrong(f"the name is gone and its inode {gone.ino} is not", name=gone.name)
        if self.c.tree.get(backref_key(gone.ino, self.ino, cookie)) is not None:
            yield self._wrong(f"inode {gone.ino} still knows the removed name", name=gone.name)

    def _check_extent(self, key: bytes, old: bytes | None, new: bytes | None) -> Iterator[Finding]:
        if old is not None:
            self.delta["stored"] -= decode_extent(old).length
        if new is None:
            return
        extent, at = decode_extent(new), key_u64(key)
        end = at + extent.length
        self.delta["stored"] += extent.length
        if self.new is not None and end > self.new.size:
            yield self._wrong(f"bytes {at} to {end} lie behind its size {self.new.size}")
        high = type_range(self.ino, EXTENT)[1]
        behind = next(self.c.tree.scan(key + b"\0", high), None)
        if behind is not None and key_u64(behind[0]) < end:
            yield self._wrong(f"bytes {key_u64(behind[0])} to {end} are there twice")
        before = next(self.c.tree.scan_back(key, extent_key(self.ino, 0)), None)
        if before is not None and key_u64(before[0]) + decode_extent(before[1]).length > at:
            yield self._wrong(f"bytes from {at} are there twice")
        for offset, message in self.c.check_units(extent):
            yield self._wrong(message, offset=offset)

    def _check_inode(self) -> Iterator[Finding]:
        new, old = self.new, self.old
        if new is None:
            left = next(self.c.tree.scan(*inode_range(self.ino)), None)
            if left is not None:
                yield self._wrong("the inode is gone, something of it is left")
            if old is not None and old.parent:
                dentry = self.c.dentry(old.parent, old.cookie)
                if dentry is not None and dentry.ino == self.ino:
                    yield self._wrong(f"the inode of a name in directory {old.parent} is gone")
            return
        if self.c.whole:
            yield from self._check_counts(new, old)
        kind = stat.S_IFMT(new.mode)
        if kind == stat.S_IFLNK:
            length = new.target.length if isinstance(new.target, Blob) else len(new.target)
            if new.size != length:
                yield self._wrong(f"a symlink of size {new.size} has a target of {length} bytes")
            if isinstance(new.target, Blob) and (
                wrong := self.c.check_blob(new.target, "a symlink's target")
            ):
                yield self._wrong(wrong, offset=new.target.offset)
        if old is not None and new.size < old.size and kind == stat.S_IFREG:
            lo, hi = type_range(self.ino, EXTENT)
            last = next(self.c.tree.scan_back(hi, lo), None)
            if last is not None and key_u64(last[0]) + decode_extent(last[1]).length > new.size:
                yield self._wrong(f"it has bytes behind its size {new.size}")
        if self.ino != ROOT_INO:
            dentry = self.c.dentry(new.parent, new.cookie)
            if dentry is None or dentry.ino != self.ino:
                yield self._wrong("no name leads to it")
            elif kind == stat.S_IFDIR and (old is None or old.parent != new.parent):
                yield from self._check_above(new)

    def _check_counts(self, new: Inode, old: Inode | None) -> Iterator[Finding]:
        delta = self.delta
        if stat.S_ISDIR(new.mode):
            links = (old.nlink if old else 2) + delta["subdirs"]
            entries = (old.size if old else 0) + delta["entries"]
            if new.size != entries:
                yield self._wrong(f"a directory of {entries} names says it has {new.size}")
        else:
            links = (old.nlink if old else 1) + delta["backrefs"]
            stored = (old.stored if old else 0) + delta["stored"]
            if new.stored != stored:
                yield self._wrong(f"it holds {stored} bytes and says {new.stored}")
        if new.nlink != links:
            yield self._wrong(f"it has {links} links and says {new.nlink}")

    def _check_above(self, inode: Inode) -> Iterator[Finding]:
        """A directory that is new or was moved has to lead to the root."""
        above, steps = inode.parent, 0
        while above != ROOT_INO:
            parent = self.c.inode(above)
            steps += 1
            if parent is None or not stat.S_ISDIR(parent.mode):
                yield self._wrong(f"directory {above} above it is missing")
                return
            if above == self.ino or steps > MAX_DEPTH:
                yield self._wrong("the directory lies in itself")
                return
            above = parent.parent

    def _stale(self, what: str, changed: int, name: bytes = b"") -> Finding:
        return self._wrong(f"{what} changed in this commit and says {changed}", name=name)

    def _wrong(self, message: str, *, name: bytes = b"", offset: int = -1) -> Finding:
        return self.c._damage(message, ino=self.ino, name=name, offset=offset)
