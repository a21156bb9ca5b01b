"""Everything of a damaged store that can be read, copied into a new one.

Each commit keeps its id, its time, its facts and its tree.  Of a commit that cannot be read whole the new
one holds what can be, and its facts list what is missing as `lost`.  One of which not even the root
directory can be read has no tree, and no commit follows it.
"""

from collections.abc import Callable
from typing import NamedTuple

from commitfs.errors import CorruptError, NotFoundError
from commitfs.format.extent import decode_extent
from commitfs.format.facts import Change, Facts, encode_facts
from commitfs.format.inode import Blob, decode_inode, decode_xattr
from commitfs.format.keys import EXTENT, INODE, ROOT_INO, XATTR, inode_key, split_key
from commitfs.format.node import NO_ROOT
from commitfs.format.record import Record
from commitfs.native import crc32c
from commitfs.store.make import new_file, new_image, write_file
from commitfs.store.salvage import commits_in, first_before
from commitfs.store.store import Store
from commitfs.store.tree import diff
from commitfs.types import Buffer
from commitfs.vfs.history import facts
from commitfs.vfs.mirror import Mirror, Step

PROGRAM = b"commitfs salvage"
GROUP_COMMITS = 256
GROUP_BYTES = 1 << 20
"""So much is written and synced at a time."""
COMMIT_ROOM = 16 << 10
CHANGE_ROOM = 1100
"""Bytes a changed key may need in the tree."""


class Loss(NamedTuple):
    """Something that could not be read."""

    commit: int
    path: bytes
    """Relative to the root; empty: the commit as a whole."""
    message: str


class Salvaged(NamedTuple):
    """Numbers of commits."""

    whole: int
    in_part: int
    """Of which something is missing that the commit before had, or that it should have brought."""
    lost: int
    oldest: int
    newest: int


class _MoreRoom(Exception):
    """More bytes are to be stored than was thought."""


def salvage(
    source: Store,
    path: str,
    *,
    lost: Callable[[Loss], None],
    progress: Callable[[int, int], None] | None = None,
) -> Salvaged:
    """Make the store `path` of what can be read of `source`, which nothing is written to.

    `path` appears when all is durable, or not at all.  UsageError: it exists.  CorruptError: not one
    commit can be read.  OSError: the new store cannot be written.  Memory is bounded by the largest
    directory and by what is lost, whatever the files' sizes.
    """
    with new_file(path) as fresh:
        write_file(fresh, new_image(source.align))
        new = Store.open(fresh, writable=True)
        try:
            result = _Salvage(source, new, lost, progress).run()
            assert new.log is not None
            new.flush()
            # Both slots name a commit: one that names none would have ids begin at 1.
            new.log.name_head()
            new.log.name_head()
        finally:
            new.close()
    return result


class _Salvage:
    def __init__(
        self,
        source: Store,
        new: Store,
        lost: Callable[[Loss], None],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.source = source
        self.new = new
        self.lost = lost
        self.progress = progress
        self.mirror = Mirror(source, new)
        self.last: Record | None = None
        """Newest commit of the new store that has a tree."""
        self.whole = self.in_part = self.oldest = self.gone = 0
        self._waiting = 0
        """Bytes of commits that are not written yet."""
        self._since = 0

    def run(self) -> Salvaged:
        end = self.source.published_end
        newest = 0
        for record in commits_in(self.source):
            if self.progress is not None:
                self.progress(min(record.offset, end), end)
            newest = newest or first_before(self.source, record)
            for missing in range(newest + 1, record.id):
                self._lose(missing, "its record is lost")
            newest = record.id
            if record.root == NO_ROOT:
                continue  # as a salvage before this one left it
            try:
                self._look_at_root(record)
                self._bring(record)
            except CorruptError as error:
                self._lose(record.id, str(error))
        if self.last is None:
            raise CorruptError(f"{self.source.path}: not one commit can be read")
        return Salvaged(self.whole, self.in_part, self.gone, self.oldest, self.last.id)

    def _lose(self, commit: int, why: str) -> None:
        self.gone += 1
        self.lost(Loss(commit, b"", why))

    def _look_at_root(self, record: Record) -> None:
        value = self.source.tree(record).get(inode_key(ROOT_INO))
        if value is None:
            raise CorruptError("it has no root directory")
        decode_inode(value)

    # -- one commit ------------------------------------------------------------------------------

    def _bring(self, record: Record) -> None:
        made, damage = self._facts(record)
        losses: list[tuple[bytes, str]] = []
        room = self._estimate(record)
        while True:
            try:
                step = self._try(record, made, losses, room)
            except _MoreRoom:
                room *= 2
                continue
            if step.losses == losses:
                break
            losses = step.losses  # facts come first among the bytes of a commit, and have to tell of them
        for path, why in losses:
            self.lost(Loss(record.id, path, why))
        if damage:
            self.lost(Loss(record.id, b"", f"what was recorded about it: {damage}"))
        if losses or damage:
            self.in_part += 1
        else:
            self.whole += 1

    def _try(self, record: Record, made: Facts, losses: list[tuple[bytes, str]], room: int) -> Step:
        """Bring a commit; it is queued if it has the losses expected."""
        self._fill_up_to(record.id)
        parent = self._parent(record)
        txn = self.new.begin(room)
        stored = 0

        def put(data: Buffer) -> int:
            nonlocal stored
            stored += len(data) + 8
            if stored > room:
                raise _MoreRoom
            return txn.add(data)

        try:
            txn.add(encode_facts(_told(made, losses), crc32c))
            step = self.mirror.bring(record, put)
            if step.losses != losses:
                txn.abort()
                return step
            if step.tree.estimate() + stored > room:
                raise _MoreRoom
            root = step.tree.build(txn.add, txn.next_offset)
        except BaseException:
            txn.abort()
            raise
        ticket = txn.finish(root=root, time_ns=record.time_ns, branch=record.branch, parent=parent)
        step.done(root)
        self.last = ticket.record
        self.oldest = self.oldest or record.id
        self._queued(ticket.record)
        return step

    def _queued(self, record: Record) -> None:
        self._waiting += record.length
        self._since += 1
        if self._waiting > GROUP_BYTES or self._since >= GROUP_COMMITS:
            self.new.flush()
            self._waiting = self._since = 0

    def _parent(self, record: Record) -> Record | None:
        """In the new store; what followed a commit that is lost follows the one before that."""
        if self.last is None or record.parent_id >= self.last.id:
            return self.last
        try:
            found = self.new.record(record.parent_id)
        except NotFoundError:
            return self.last
        return found if found.root != NO_ROOT else self.last

    def _fill_up_to(self, commit: int) -> None:
        """Ids are dense: commits without a tree stand for those that are lost."""
        if self.last is None:
            self.new.number_from(commit)
            return
        while self.new.next_id < commit:
            txn = self.new.begin()
            told = (Change("lost", b""),)
            txn.add(encode_facts(Facts(self.last.time_ns, 0, 0, PROGRAM, told), crc32c))
            self._queued(txn.finish(root=NO_ROOT, time_ns=self.last.time_ns, parentless=True).record)

    def _facts(self, record: Record) -> tuple[Facts, str]:
        """Those of a commit, and what is wrong with them."""
        wrong = ""
        try:
            made = facts(self.source, record)
        except CorruptError as error:
            made, wrong = None, str(error)
        return made or Facts(record.time_ns, 0, 0, PROGRAM, (), truncated=True), wrong

    def _estimate(self, record: Record) -> int:
        """About as many bytes as the commit will take: what it has anew, and its part of the tree."""
        mirror = self.mirror
        room = COMMIT_ROOM
        held: set[int] = set()
        changes = diff(
            self.source.nodes, mirror.at, record.root, gap_a=lambda *gap: None, gap_b=lambda *gap: None
        )
        for key, old, new in changes:
            room += CHANGE_ROOM
            kind = split_key(key)[1]
            try:
                if kind == EXTENT:
                    if old is not None:
                        extent = decode_extent(old)
                        held = {extent.offset, *(held if len(held) < 1000 else ())}
                    if new is not None and (extent := decode_extent(new)).offset not in held:
                        room += extent.run
                elif new is not None and kind in (INODE, XATTR):
                    value = decode_inode(new).target if kind == INODE else decode_xattr(new)
                    room += value.length if isinstance(value, Blob) else 0
            except CorruptError:
                continue
        return room


def _told(made: Facts, losses: list[tuple[bytes, str]]) -> Facts:
    lost = tuple(Change("lost", path) for path, _ in losses)
    return made._replace(changes=(*lost, *made.changes)) if lost else made


__all__ = ["Loss", "Salvaged", "salvage"]
