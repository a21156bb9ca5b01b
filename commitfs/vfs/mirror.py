"""The tree of a store being written anew: of each commit of a damaged store as much as can be read.

The new tree has the keys of the old one, so each commit is brought over by what differs from the one
before.  Places in the log change, and "changed in" is the commit in which the new store has the value
first.  What cannot be read is left out so that a sound tree remains:

  R1  A file is there with all its contents, or not at all: no byte of it is made up.
  R2  A name is there if what it names is; what no name leads to is not there either.
  R3  Sizes and links of directories, and links of files, count what is there.

What was left out comes back in the first commit in which it can be read: where a later one changed it,
or has a whole copy of what was damaged.
"""

import stat
from collections.abc import Iterable, Iterator
from itertools import groupby

from commitfs.errors import CorruptError
from commitfs.format.extent import decode_extent, encode_extent
from commitfs.format.inode import (
    Inode,
    decode_dentry,
    decode_inode,
    encode_allocator,
    encode_dentry,
    encode_inode,
)
from commitfs.format.keys import (
    ALLOCATOR_KEY,
    DENTRY,
    EXTENT,
    GROUP,
    INODE,
    ROOT_INO,
    TOMBSTONE,
    XATTR,
    dentry_key,
    inode_key,
    inode_range,
    key_u64,
    split_key,
    type_range,
)
from commitfs.format.node import NO_ROOT, Root
from commitfs.format.record import Record
from commitfs.store.store import Store
from commitfs.store.tree import diff, readable
from commitfs.vfs.mirror_names import Names
from commitfs.vfs.mirror_values import Change, Put
from commitfs.vfs.paths import joined, path_in


class Mirror:
    """Brings the commits of `source` over to `new`, in order."""

    def __init__(self, source: Store, new: Store) -> None:
        self.source = source
        self.new = new
        self.at = NO_ROOT
        """Root, in the source, of the commit brought over last."""
        self.root = NO_ROOT
        """Its root in the new store."""
        self.lost: set[int] = set()
        """Inodes the source has in that commit and the new store has not."""
        self.fewer: set[int] = set()
        """Files some of whose names are left out."""
        self.whole = NO_ROOT
        """Root in the new store of the last commit in which nothing was left out: what comes back later
        need not be stored again."""

    def bring(self, record: Record, put: Put) -> "Step":
        """One commit.  `put` stores bytes and gives their place.  Nothing of this mirror changes before
        the step is `done`.  CorruptError: not even its root directory can be read."""
        step = Step(self, record, put)
        step.run()
        return step


class Step(Names):
    """One commit being brought over."""

    def __init__(self, mirror: Mirror, record: Record, put: Put) -> None:
        super().__init__(mirror, record, put)
        self._gaps: list[tuple[bytes, bytes | None]] = []
        self._healed = False
        self._suspects: set[int] = set()

    def run(self) -> None:
        self._inode_now(ROOT_INO)
        changes = diff(self.source.nodes, self.old.root, self.now.root, gap_a=self._old_gap, gap_b=self._gap)
        again = set()
        for ino, group in groupby(self._known(changes), key=lambda change: split_key(change[0])[0]):
            if ino == 0:
                self._common(group)
            elif ino in self.lost:
                again.add(ino)
                for _ in group:
                    pass
            else:
                self._bring_changes(ino, list(group))
        self._look_at_gaps()
        if self._gaps or self._suspects or self.fewer:
            self._nameless += self._brought
        for ino in sorted(self._suspects):
            self._again(ino)
        for ino in sorted(again):
            self._again(ino)
        self._settle_names()
        self._count()
        if self.tree.get(inode_key(ROOT_INO)) is None:
            raise CorruptError("the root directory is damaged")
        if self._healed:
            self.lost = {ino for ino in self.lost if self._is_named_now(ino)}

    def done(self, root: Root) -> None:
        """The tree was stored at `root`."""
        mirror = self.mirror
        mirror.at, mirror.root = self.record.root, root
        mirror.lost, mirror.fewer = self.lost, self.fewer
        if not (self.lost or self.fewer or self._gaps):
            mirror.whole = root

    # -- what differs ----------------------------------------------------------------------------

    def _gap(self, low: bytes, high: bytes | None, _why: CorruptError) -> None:
        self._gaps.append((low, high))

    def _old_gap(self, low: bytes, high: bytes | None, why: CorruptError) -> None:
        self._healed = True
        self._gap(low, high, why)

    def _known(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Without what seems to be gone because the node that would have it cannot be read."""
        for change in changes:
            key, _, value = change
            if value is not None or not any(
                low <= key and (high is None or key < high) for low, high in self._gaps
            ):
                yield change
            elif ino := split_key(key)[0]:
                self._suspects.add(ino)

    def _common(self, group: Iterable[Change]) -> None:
        for key, _, value in group:
            if value is None:
                self.tree.delete(key)
            else:
                self.tree.put(key, value)

    def _bring_changes(self, ino: int, group: list[Change]) -> None:
        try:
            places = self._places(group)
            for key, _, value in group:
                kind = split_key(key)[1]
                if kind == EXTENT and value is None:
                    self.tree.delete(key)
            for key, _, value in group:
                self._bring_one(ino, key, value, places)
        except CorruptError as error:
            self._suspects.add(ino)
            self._report(ino, str(error))

    def _bring_one(self, ino: int, key: bytes, value: bytes | None, places: dict[int, int]) -> None:
        kind = split_key(key)[1]
        if kind == DENTRY:
            self._set_name(ino, key_u64(key), None if value is None else decode_dentry(value))
        elif value is None:
            self.tree.delete(key)
        elif kind == TOMBSTONE:
            if self.tree.get(dentry_key(ino, key_u64(key))) is None:
                stone = decode_dentry(value)._replace(changed=self.commit)
                self.tree.put(key, encode_dentry(stone))
        elif kind == INODE:
            self._put_inode(ino, self._bring_target(decode_inode(value)))
        elif kind == EXTENT:
            self.tree.put(key, encode_extent(self._bring_extent(ino, key_u64(key), value, places)))
        elif kind == XATTR:
            self._bring_xattr(ino, key, value)
        else:
            self.tree.put(key, value)

    # -- what is damaged -------------------------------------------------------------------------

    def _look_at_gaps(self) -> None:
        """Everything that may have keys where nodes cannot be read is brought over as a whole."""
        for low, high in self._gaps:
            first = int.from_bytes(low[:8].ljust(8, b"\0"), "big")
            last = (1 << 64) - 1 if high is None else int.from_bytes(high[:8].ljust(8, b"\0"), "big")
            end = b"\xff" * 9 if high is None else inode_range(last)[1]
            at = inode_range(max(first, 1))[0]
            while (found := next(self.tree.scan(at, end), None)) is not None:
                ino = split_key(found[0])[0]
                self._suspects.add(ino)
                at = inode_range(ino)[1]
            if low <= ALLOCATOR_KEY and (high is None or high > ALLOCATOR_KEY):
                self._guess_allocator()

    def _guess_allocator(self) -> None:
        """The next free group of inode numbers cannot be read: take one above all in use."""
        newest = next(self.tree.scan_back(b"\xff" * 9), None)
        group = 1 if newest is None else split_key(newest[0])[0] // GROUP + 1
        self.tree.put(ALLOCATOR_KEY, encode_allocator(group))

    def _again(self, ino: int) -> None:
        """Bring all of an inode over, whatever was there of it; leave it out if that cannot be."""
        try:
            self._bring_whole(ino)
        except CorruptError as error:
            if self._is_named_now(ino):
                self._report(ino, str(error))
            self._evict(ino)

    def _bring_whole(self, ino: int) -> None:
        told = self._inode_now(ino)
        found: dict[int, list[tuple[bytes, bytes]]] = {DENTRY: [], EXTENT: [], XATTR: [], TOMBSTONE: []}
        gaps: dict[int, str] = {}
        for kind, entries in found.items():
            low, high = type_range(ino, kind)

            def gap(_low: bytes, _high: bytes | None, why: CorruptError, kind: int = kind) -> None:
                gaps[kind] = str(why)

            entries += readable(self.source.nodes, self.now.root, low, high, gap)
        self._bring_contents(ino, told, found[EXTENT], gaps.get(EXTENT, ""))
        if not self._unchanged(inode_key(ino), encode_inode(told)):
            self._put_inode(ino, self._bring_target(told))
        there = {key for key, _ in found[XATTR]}
        for key, _ in list(self.tree.scan(*type_range(ino, XATTR))):
            if key not in there:
                self.tree.delete(key)
        for key, value in found[XATTR]:
            if not self._unchanged(key, value):
                self._bring_xattr(ino, key, value)
        if XATTR in gaps:
            self._report(ino, f"extended attributes: {gaps[XATTR]}")
        if stat.S_ISDIR(told.mode):
            self._bring_names(ino, found[DENTRY], found[TOMBSTONE], gaps.get(DENTRY, ""))
        self.lost.discard(ino)
        if ino != ROOT_INO:
            self._bring_links(ino, told)
            self._nameless.append(ino)

    def _bring_contents(self, ino: int, inode: Inode, entries: list[tuple[bytes, bytes]], gap: str) -> None:
        """All of them or none (R1)."""
        if gap and stat.S_ISREG(inode.mode):
            raise CorruptError(gap)
        stored = 0
        brought = []
        for key, value in entries:
            extent = decode_extent(value)
            stored += extent.length
            if not self._unchanged(key, value):
                brought.append((key, self._bring_extent(ino, key_u64(key), value, {})))
        if stat.S_ISREG(inode.mode) and stored != inode.stored:
            raise CorruptError(f"{inode.stored - stored} bytes of the contents are missing")
        there = {key for key, _ in entries}
        for key, _ in list(self.tree.scan(*type_range(ino, EXTENT))):
            if key not in there:
                self.tree.delete(key)
        for key, extent in brought:
            self.tree.put(key, encode_extent(extent))

    def _unchanged(self, key: bytes, value: bytes) -> bool:
        """Whether what the new tree has at a key is what the source has there."""
        try:
            return self.tree.get(key) is not None and self.old.get(key) == value
        except CorruptError:
            return False

    def _bring_names(
        self,
        ino: int,
        names: list[tuple[bytes, bytes]],
        stones: list[tuple[bytes, bytes]],
        gap: str,
    ) -> None:
        if gap:
            self._report(ino, f"names in it: {gap}")
        now = {key: decode_dentry(value) for key, value in names}
        for key, value in list(self.tree.scan(*type_range(ino, DENTRY))):
            dentry = decode_dentry(value)
            if key not in now or now[key].ino != dentry.ino:
                if gap and key not in now:
                    self._report_path(joined(path_in(self.before, ino), dentry.name), gap)
                self._set_name(ino, key_u64(key), None, stone=key not in now)
                self._nameless.append(dentry.ino)
        for key, dentry in now.items():
            mine = self.tree.get(key)
            if mine is None or decode_dentry(mine)._replace(changed=0) != dentry._replace(changed=0):
                self._set_name(ino, key_u64(key), dentry)
        for key, value in stones:
            if self.tree.get(key) is None and self.tree.get(dentry_key(ino, key_u64(key))) is None:
                self.tree.put(key, encode_dentry(decode_dentry(value)._replace(changed=self.commit)))


__all__ = ["Mirror", "Step"]
