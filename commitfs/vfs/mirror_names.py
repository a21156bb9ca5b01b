"""Names and inodes of a tree that is copied as far as it can be read: every name leads to something and
everything has a name (R2), and counts are right (R3) when a step ends."""

import stat
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from commitfs.errors import CorruptError
from commitfs.format.inode import (
    DIR_KIND,
    Dentry,
    Inode,
    decode_dentry,
    decode_inode,
    encode_dentry,
    encode_inode,
)
from commitfs.format.keys import (
    BACKREF,
    DENTRY,
    ROOT_INO,
    backref_key,
    backref_of,
    dentry_key,
    inode_key,
    inode_range,
    key_u64,
    split_key,
    tombstone_key,
    type_range,
)
from commitfs.format.record import Record
from commitfs.store.tree import readable
from commitfs.vfs.mirror_values import Put, Values
from commitfs.vfs.paths import joined, path_in

if TYPE_CHECKING:
    from commitfs.vfs.mirror import Mirror


class Names(Values, ABC):
    """Of one commit."""

    def __init__(self, mirror: "Mirror", record: Record, put: Put) -> None:
        super().__init__(mirror.source, mirror.new, record, put, mirror.at, mirror.root, mirror.whole)
        self.mirror = mirror
        self.record = record
        self.lost = set(mirror.lost)
        self.fewer = set(mirror.fewer)
        self._named: list[tuple[int, int, int]] = []
        """(directory, cookie, inode) of names put."""
        self._nameless: list[int] = []
        """Inodes a name of which may have been taken away by what is left out."""
        self._brought: list[int] = []
        """Inodes put, some of whose names may not be there."""
        self._moved: dict[int, list[int]] = {}
        """Entries and subdirectories more than before, of each directory whose names changed."""

    @abstractmethod
    def _again(self, ino: int) -> None:
        """Bring all of an inode over, or leave it out."""

    # -- names -----------------------------------------------------------------------------------

    def _set_name(self, directory: int, cookie: int, dentry: Dentry | None, *, stone: bool = False) -> None:
        """Put a name or take it away; with `stone` leave a tombstone of it."""
        key = dentry_key(directory, cookie)
        value = self.tree.get(key)
        moved = self._moved.setdefault(directory, [0, 0])
        if value is not None:
            gone = decode_dentry(value)
            moved[0] -= 1
            moved[1] -= gone.kind == DIR_KIND
            self.tree.delete(key)
            if stone:
                self.tree.put(
                    tombstone_key(directory, cookie), encode_dentry(gone._replace(changed=self.commit))
                )
        if dentry is not None:
            moved[0] += 1
            moved[1] += dentry.kind == DIR_KIND
            self.tree.put(key, encode_dentry(dentry._replace(changed=self.commit)))
            self.tree.delete(tombstone_key(directory, cookie))
            self._named.append((directory, cookie, dentry.ino))

    def _settle_names(self) -> None:
        """Until every name leads to something and everything has a name (R2)."""
        while self._named or self._nameless:
            if self._nameless:
                self._relink(self._nameless.pop())
                continue
            directory, cookie, ino = self._named.pop()
            value = self.tree.get(dentry_key(directory, cookie))
            if value is None or decode_dentry(value).ino != ino:
                continue
            if self.tree.get(inode_key(ino)) is None:
                self._again(ino)
            elif ino in self.fewer:
                self._relink(ino)
            if self.tree.get(inode_key(ino)) is None:
                self._report_path(joined(path_in(self.tree, directory), decode_dentry(value).name), "lost")
                self._set_name(directory, cookie, None, stone=True)
                self.lost.add(ino)

    def _relink(self, ino: int) -> None:
        """See to it that an inode knows the names that lead to it, and no others."""
        value = self.tree.get(inode_key(ino))
        if value is None or ino == ROOT_INO:
            return
        inode = decode_inode(value)
        links = self._links(ino, inode)
        there = [place for place in links if self._leads_to(place, ino)]
        if not there:
            self._evict(ino)
            return
        self.fewer.discard(ino)
        if len(there) < len(links):
            self.fewer.add(ino)
        if stat.S_ISDIR(inode.mode):
            return
        others = {backref_key(ino, *place) for place in there[1:]}
        for key in [key for key, _ in self.tree.scan(*type_range(ino, BACKREF)) if key not in others]:
            self.tree.delete(key)
        for key in sorted(others):
            self.tree.put(key, b"")
        known = inode._replace(nlink=len(there), parent=there[0][0], cookie=there[0][1])
        if known != inode:
            self.tree.put(inode_key(ino), encode_inode(known._replace(changed=self.commit)))

    def _links(self, ino: int, inode: Inode) -> list[tuple[int, int]]:
        """(directory, cookie) of all names the source says it has, and of those it is known by here."""
        places = {(inode.parent, inode.cookie): None}
        try:
            told = self._inode_now(ino)
            places = {(told.parent, told.cookie): None, **places}
        except CorruptError:
            pass
        low, high = type_range(ino, BACKREF)
        for key, _ in readable(self.source.nodes, self.now.root, low, high, lambda *gap: None):
            places[backref_of(key)] = None
        for key, _ in self.tree.scan(low, high):
            places[backref_of(key)] = None
        return list(places)

    def _leads_to(self, place: tuple[int, int], ino: int) -> bool:
        value = self.tree.get(dentry_key(*place))
        return value is not None and decode_dentry(value).ino == ino

    def _path_of(self, place: tuple[int, int]) -> bytes:
        value = self.tree.get(dentry_key(*place))
        assert value is not None
        return joined(path_in(self.tree, place[0]), decode_dentry(value).name)

    def _names_now(self, place: tuple[int, int], ino: int) -> bool:
        """False where the source tells that the name does not lead there any more."""
        try:
            value = self.now.get(dentry_key(*place))
            return value is not None and decode_dentry(value).ino == ino
        except CorruptError:
            return True

    def _inode_now(self, ino: int) -> Inode:
        value = self.now.get(inode_key(ino))
        if value is None:
            raise CorruptError(f"inode {ino} is missing")
        return decode_inode(value)

    def _is_named_now(self, ino: int) -> bool:
        """False where the source tells that there is no such inode any more."""
        try:
            return self.now.get(inode_key(ino)) is not None
        except CorruptError:
            return True

    def _bring_links(self, ino: int, inode: Inode) -> None:
        """Names that were left out with their inode, in directories that are there."""
        for parent, cookie in self._links(ino, inode):
            if self.tree.get(inode_key(parent)) is None or self.tree.get(dentry_key(parent, cookie)):
                continue
            try:
                value = self.now.get(dentry_key(parent, cookie))
                dentry = None if value is None else decode_dentry(value)
            except CorruptError:
                continue
            if dentry is not None and dentry.ino == ino:
                self._set_name(parent, cookie, dentry)

    def _evict(self, ino: int) -> None:
        """Take an inode out of the new tree with all its names, and what is named in it."""
        value = self.tree.get(inode_key(ino))
        if value is not None:
            inode = decode_inode(value)
            for place in self._links(ino, inode):
                if self._leads_to(place, ino):
                    if self._names_now(place, ino):
                        self._report_path(self._path_of(place), "lost")
                    self._set_name(*place, None, stone=True)
        for key, held in list(self.tree.scan(*inode_range(ino))):
            if split_key(key)[1] == DENTRY:
                self._set_name(ino, key_u64(key), None)
                self._nameless.append(decode_dentry(held).ino)
            else:
                self.tree.delete(key)
        self.fewer.discard(ino)
        self.lost.discard(ino)
        if self._is_named_now(ino):
            self.lost.add(ino)

    def _put_inode(self, ino: int, inode: Inode) -> None:
        self.tree.put(inode_key(ino), encode_inode(inode._replace(changed=self.commit)))
        if stat.S_ISDIR(inode.mode):
            self._moved.setdefault(ino, [0, 0])
        self._brought.append(ino)

    # -- counts ----------------------------------------------------------------------------------

    def _count(self) -> None:
        """Directories count the names that are there (R3)."""
        for ino, (entries, directories) in self._moved.items():
            value = self.tree.get(inode_key(ino))
            if value is None:
                continue
            earlier = self.before.get(inode_key(ino))
            was = None if earlier is None else decode_inode(earlier)
            inode = decode_inode(value)._replace(
                size=entries + (was.size if was is not None else 0),
                nlink=directories + (was.nlink if was is not None else 2),
            )
            if was is None or inode._replace(changed=0) != was._replace(changed=0):
                self.tree.put(inode_key(ino), encode_inode(inode._replace(changed=self.commit)))


__all__ = ["Names"]
