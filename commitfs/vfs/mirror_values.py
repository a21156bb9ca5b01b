"""What a commit's tree holds, copied to another store: values whose places in the log change."""

from collections.abc import Callable

from commitfs.errors import CorruptError
from commitfs.format.extent import UNIT, Extent, decode_extent
from commitfs.format.inode import Blob, Inode, decode_xattr, encode_xattr
from commitfs.format.keys import EXTENT, split_key
from commitfs.format.node import Root
from commitfs.format.record import Record
from commitfs.native import crc32c
from commitfs.store.store import Store
from commitfs.store.tree import Tree
from commitfs.types import Buffer
from commitfs.vfs.content import read_extent, same_stored
from commitfs.vfs.paths import path_in

Change = tuple[bytes, bytes | None, bytes | None]
"""(key, value before, value now)"""
Put = Callable[[Buffer], int]
"""Stores bytes; their place."""


class Values:
    """Of one commit.  All raise CorruptError for what cannot be read, and have changed nothing then."""

    def __init__(
        self, source: Store, new: Store, record: Record, put: Put, old: Root, before: Root, whole: Root
    ) -> None:
        self.source, self.new = source, new
        self.commit = int(record.id)
        self.put = put
        self.old = Tree(source.nodes, old)
        """The source's tree of the commit before; then of this one."""
        self.now = source.tree(record)
        self.before = Tree(new.nodes, before)
        """The new store's tree of the commit before; then of this one."""
        self.tree = Tree(new.nodes, before)
        self._spare = Tree(new.nodes, whole)
        self.losses: list[tuple[bytes, str]] = []
        """(path, what is the matter) of everything left out that was there before or is new."""
        self._reported: set[bytes] = set()

    def _places(self, group: list[Change]) -> dict[int, int]:
        """Where the units that changed extents consisted of are in the new store."""
        places = {}
        for key, value, _ in group:
            mine = self.tree.get(key) if split_key(key)[1] == EXTENT and value is not None else None
            if mine is not None and value is not None:
                theirs, ours = decode_extent(value), decode_extent(mine)
                for at in range(0, theirs.run, UNIT):
                    places[theirs.offset + at] = ours.offset + at
        return places

    def _bring_extent(self, ino: int, at: int, value: bytes, places: dict[int, int]) -> Extent:
        extent = decode_extent(value)
        place = places.get(extent.offset)
        if place is not None and all(
            places.get(extent.offset + step) == place + step for step in range(0, extent.run, UNIT)
        ):
            return extent._replace(offset=place)
        whole = extent._replace(length=extent.run, skip=0)
        data = read_extent(self.source, whole, 0, extent.run)
        if extent == whole and (kept := same_stored(self._spare, self.new, ino, at, data, crc32c)):
            return kept
        return extent._replace(offset=self.put(data))

    def _bring_blob(self, blob: Blob, what: str) -> Blob:
        return blob._replace(offset=self.put(self.source.read_checked(*blob, what)))

    def _bring_target(self, inode: Inode) -> Inode:
        if isinstance(inode.target, Blob):
            return inode._replace(target=self._bring_blob(inode.target, "a symlink's target"))
        return inode

    def _bring_xattr(self, ino: int, key: bytes, value: bytes) -> None:
        try:
            found = decode_xattr(value)
            if isinstance(found, Blob):
                found = self._bring_blob(found, "an extended attribute")
        except CorruptError as error:
            self.tree.delete(key)
            self._report(ino, str(error))
            return
        self.tree.put(key, encode_xattr(found))

    def _report(self, ino: int, what: str) -> None:
        path = path_in(self.now, ino)
        if b"<inode " in path:
            earlier = path_in(self.before, ino)
            path = path if b"<inode " in earlier else earlier
        self._report_path(path, what)

    def _report_path(self, path: bytes, what: str) -> None:
        if path not in self._reported:
            self._reported.add(path)
            self.losses.append((path, what))


__all__ = ["Change", "Put", "Values"]
