"""Commit points: when what is pending and staged becomes a commit, and who waits for it.

Invariants
  M1  From `Store.begin` to `Txn.finish` there is no await: a commit is one consistent state (P3).
  M2  A commit takes everything staged, and the pending contents of the file whose commit point it is
      (of both that change places); never another file's (P2).
  M3  Room is asked for before anything is changed: ENOSPC leaves all as it was.  Files whose commit point
      was their own (a close, a sync) and could not be kept stay in `retry` until it was.
  M4  A name change and the contents that go with it are in one commit or in none: an error behind the
      change ends all saving rather than leaving it to somebody else's commit.
"""

import logging
import math
import stat
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from commitfs.errors import CommitfsError
from commitfs.format.extent import Extent
from commitfs.format.facts import Change, Facts, encode_facts
from commitfs.format.inode import Blob, encode_xattr
from commitfs.format.keys import ALLOCATOR_KEY, INODE, extent_key, inode_key, split_key, xattr_key
from commitfs.native import crc32c
from commitfs.store.committer import GroupCommitter
from commitfs.store.stage import Stager
from commitfs.store.store import Store, Ticket, Txn
from commitfs.store.tree import Batch
from commitfs.vfs.content import SPILL_BYTES, Pending, chunks, make_extent, same_stored
from commitfs.vfs.headroom import Headroom
from commitfs.vfs.live import Live, Node
from commitfs.vfs.namespace import land
from commitfs.vfs.newfile import commit_new_file, is_new_file

FILE_ROOM = 12 << 10
"""Bytes a commit of one file may need beside its data: record, facts and a changed path in the tree."""
EXTENT_ROOM = 72
NODE_ROOM = 1100
"""What one run may need: its extent beside others, or a node of the tree."""
SPARE_ROOM = 128 << 10
"""Kept free of new contents, so that files can still be removed from a full disk."""
STAGED_LIMIT = 2 << 20
"""Staged nodes above this are committed without waiting for the settle time."""
MEMORY_LIMIT = 64 << 20
"""Pending bytes of all files together kept in memory."""


class Who(NamedTuple):
    """Whose commit it is; goes into its facts."""

    uid: int
    pid: int
    program: bytes


NOBODY = Who(0, 0, b"")

_NOTHING = (0, 0)

log = logging.getLogger(__name__)


def _room(node: Node, pending: Pending) -> int:
    """Upper bound of what a commit of these contents places in the log.

    In a file that has extents already, each run may change a node of its own.
    """
    scattered = node.saved is not None and node.saved.stored > 0
    each = NODE_ROOM if scattered else EXTENT_ROOM
    return FILE_ROOM + pending.memory + (pending.memory >> 9) + each * len(pending.runs)


class Commits:
    def __init__(
        self, live: Live, store: Store, committer: GroupCommitter, stager: Stager, settle: float
    ) -> None:
        self.live = live
        self.store = store
        self.committer = committer
        self.stager = stager
        self.settle_time = settle
        self.pending: dict[Node, tuple[int, int]] = {}
        """Nodes with pending contents: their bytes in memory, and the room their commit needs."""
        self.memory = 0
        self.room = 0
        self.retry: set[Node] = set()
        self.headroom = Headroom()
        self._spill_done: trio.Event | None = None
        self._staged = trio.Event()
        self.last_who = NOBODY
        live.on_dead = self.dead

    # Pending contents

    def start(self, node: Node) -> Pending:
        """The node's pending contents, begun now if there are none.  Raises OSError ENOSPC."""
        pending = node.pending
        if pending is None:
            pending = node.pending = Pending(node.attr.size)
            self.live.pin(node)
        if node not in self.pending:
            self.account(node)
        return pending

    def account(self, node: Node) -> None:
        """The node's pending contents have changed, or are gone."""
        pending = node.pending
        memory, room = self.pending.pop(node, _NOTHING)
        self.memory -= memory
        self.room -= room
        if pending is not None:
            memory = pending.memory
            room = 0 if node.dead else _room(node, pending)
            self.pending[node] = memory, room
            self.memory += memory
            self.room += room

    def full(self, pending: Pending, more: int) -> bool:
        """Whether contents in memory have to go to a stage before `more` bytes join them."""
        over = pending.memory + more > SPILL_BYTES or self.memory + more > MEMORY_LIMIT
        return over and pending.memory > 0

    def reserve(self, more: int) -> None:
        """Make sure that `more` pending bytes and all that waits already will fit.  Raises OSError."""
        self.headroom.accept(more)
        waiting = self.room + more + (more >> 9) + FILE_ROOM
        self.store.reserve(waiting + self.live.tree.estimate() + SPARE_ROOM)

    async def spilled(self, node: Node) -> None:
        """Wait until no bytes of the node are on their way to a stage."""
        while node.spilling:
            if self._spill_done is None:
                self._spill_done = trio.Event()
            await self._spill_done.wait()

    async def spill(self, node: Node) -> None:
        """Move pending bytes from memory to a stage, so that a file of any size needs bounded memory.

        Writers of the file wait meanwhile (`spilled`); readers go on.  Chunks get their checksum here
        and never change again: a later write of the same range takes new room.
        """
        pending = node.pending
        assert pending is not None
        node.spilling = True
        try:
            pieces = [
                (at, bytes(data)) for start, run in pending.memory_runs() for at, data in chunks(start, run)
            ]
            full = [piece for piece in pieces if len(piece[1]) >= SPILL_BYTES // 2]
            if sum(len(data) for _, data in full) * 2 >= pending.memory:
                pieces = full
            batch: list[tuple[int, bytes]] = []
            size = 0
            for at, data in pieces:
                if self._stored_already(node, pending, at, data):
                    continue
                if size + len(data) > SPILL_BYTES:
                    await self._stage(node, pending, batch, size)
                    batch, size = [], 0
                batch.append((at, data))
                size += len(data)
            if batch:
                await self._stage(node, pending, batch, size)
        finally:
            node.spilling = False
            if self._spill_done is not None:
                self._spill_done.set()
                self._spill_done = None

    def _stored_already(self, node: Node, pending: Pending, at: int, data: bytes) -> bool:
        if not (node.saved and node.saved.stored):
            return False
        old = same_stored(self.live.tree, self.store, node.ino, at, data, crc32c)
        if old is None:
            return False
        self._stored(node, pending, at, len(data), old)
        return True

    def _stored(self, node: Node, pending: Pending, at: int, length: int, extent: Extent) -> None:
        """Bytes of `pending` lie in the log now.  The file may have been unlinked meanwhile: then its
        Pending is another one, and this one is not counted any more."""
        pending.replace(at, length, extent)
        if node.pending is pending:
            self.account(node)

    async def _stage(self, node: Node, pending: Pending, batch: list[tuple[int, bytes]], size: int) -> None:
        joined = b"".join(data for _, data in batch) + bytes(-size % 4096)
        offset = await self.stager.put(joined)
        pending.staged = self.stager.puts
        for at, data in batch:
            self._stored(node, pending, at, len(data), make_extent(data, offset, crc32c))
            offset += len(data)

    def dead(self, node: Node, old: Pending | None) -> None:
        """The node's last name is gone: nothing of it will be committed."""
        self.account(node)
        self.retry.discard(node)

    # Commit points

    async def point(
        self, nodes: Sequence[Node], who: Who, change: Callable[[], object] | None = None
    ) -> None:
        """A commit point of a file (of two when they change places; of none for what is staged alone).
        Returns when it is durable.

        `change` is a namespace change that belongs to the same commit; it may refuse with FsError, and
        then nothing has happened.
        """
        try:
            while True:
                if busy := next((node for node in nodes if node.spilling), None):
                    await self.spilled(busy)
                elif any(n.pending is not None and n.pending.staged > self.stager.synced for n in nodes):
                    await self.stager.sync()
                else:
                    break  # and nothing was awaited since that was seen
            ticket = self.build(nodes, who, change)
        except BaseException:
            if change is None:
                self.retry.update(node for node in nodes if node.pending is not None and not node.dead)
                self._staged.set()
            raise
        await self.committer.acknowledge(ticket)

    def build(self, nodes: Sequence[Node], who: Who, change: Callable[[], object] | None = None) -> Ticket:
        """Make the commit and queue it (M1).  Raises OSError ENOSPC and the like before any change."""
        live = self.live
        live.check_writable()
        room = live.tree.estimate() + FILE_ROOM
        for value in live.blobs.values():
            room += len(value)
        for node in nodes:
            if node.pending is not None:
                room += _room(node, node.pending)
        txn = self.store.begin(room)
        changed = False
        try:
            if change is not None:
                # What cannot be read is met before anything is changed.
                self._touch([node for node in nodes if not node.dead])
                change()
                changed = True
                for node in nodes:
                    if node.pending is not None:
                        node.pending.at_name_change = True
            alive = [node for node in nodes if not node.dead]
            ticket = None
            if len(alive) == 1 and txn.next_offset and is_new_file(live, alive[0]):
                ticket = commit_new_file(live, txn, alive[0], who)
            if ticket is None:
                ticket = self._fill(txn, alive, who)
            for node in alive:
                self.account(node)
                self.retry.discard(node)
        except BaseException as exc:
            if changed:
                # The name has changed, and its contents are in no commit: nobody else's may hold that.
                live.half_done(exc)
            if live.broken is None:
                txn.abort()
            else:
                txn.abandon()
            raise
        self.last_who = NOBODY
        return ticket

    def _fill(self, txn: Txn, nodes: list[Node], who: Who) -> Ticket:
        live, tree = self.live, self.live.tree
        now = live.now()
        changes = (*map(self._change, nodes), *live.changes)
        facts = Facts(now, who.uid, who.pid, who.program, changes, live.changes_truncated)
        txn.add(encode_facts(facts, crc32c))
        self._touch(nodes)
        try:
            batch = Batch()
            for node in nodes:
                self._save_contents(txn, node, batch)
            tree.apply(batch)
            for key, value in live.blobs.items():
                self._save_blob(txn, key, value)
            live.blobs.clear()
            live.numbers.save()
            root = tree.build(txn.add, txn.next_offset)
            ticket = txn.finish(root=root, time_ns=now)
        except BaseException as exc:
            live.half_done(exc)
            raise
        live.changes.clear()
        live.changes_truncated = False
        return ticket

    def _change(self, node: Node) -> Change:
        fresh = node.fresh
        if fresh is None:
            return Change("write", self.live.paths.of(node), node.attr.size)
        return Change("create", self.live.paths.child(fresh.parent, fresh.name), node.attr.size)

    def _touch(self, nodes: list[Node]) -> None:
        """Have everything at hand that the changes of a commit will read (L4)."""
        live = self.live
        keys = [ALLOCATOR_KEY]
        for node in nodes:
            ino, fresh, pending = node.ino, node.fresh, node.pending
            keys.append(inode_key(ino))
            if fresh is not None:
                keys += live.name_keys(fresh.parent, fresh.cookie)
                keys += [xattr_key(ino, name) for name in node.xattrs or ()]
            if pending is None:
                continue
            if node.saved is not None and node.saved.stored:
                pending.touch(live.tree, ino)
            else:
                keys += [extent_key(ino, start) for start in pending.starts]
        for key in live.blobs:
            keys.append(key)
            keys.append(inode_key(split_key(key)[0]))
        live.tree.touch(*keys)

    def _save_contents(self, txn: Txn, node: Node, batch: Batch) -> None:
        live = self.live
        land(live, node, batch)
        pending = node.pending
        if pending is None:
            return
        assert node.saved is not None
        stored = pending.apply(live.tree, batch, self.store, node.ino, node.saved.stored, txn.add, crc32c)
        node.pending = None
        node.attr = node.attr.changed_in(self.store.next_id, stored)
        live.save(node, batch)

    def _save_blob(self, txn: Txn, key: bytes, value: bytes) -> None:
        live = self.live
        blob = Blob(txn.add(value), len(value), crc32c(value))
        ino, kind, _ = split_key(key)
        if kind == INODE:
            node = live.node(ino)
            assert stat.S_ISLNK(node.attr.mode)
            node.attr = node.attr._replace(target=blob)
            live.save(node)
        else:
            live.tree.put(key, encode_xattr(blob))

    # Staged changes

    async def staged(self, who: Who) -> None:
        """Something was staged by `who`: have it committed in time (P4)."""
        self.last_who = who
        if self.settle_time <= 0 or self.live.tree.estimate() > STAGED_LIMIT:
            await self.settle()
        else:
            self._staged.set()

    async def settle(self) -> None:
        """Commit what is staged, if anything is; returns when it and all before it is durable."""
        for node in list(self.retry):
            if node.pending is None or node.dead:
                self.retry.discard(node)
            else:
                await self.point([node], self.last_who)
        if self.live.staged and self.live.broken is None:
            await self.point([], self.last_who)
        else:
            await self.committer.drain()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Settle the staged changes, at most the settle time after the first of them."""
        task_status.started()
        if self.settle_time <= 0 or math.isinf(self.settle_time):
            await trio.sleep_forever()
        failed = False
        while True:
            await self._staged.wait()
            await trio.sleep(self.settle_time)
            self._staged = trio.Event()
            if not (self.live.staged or self.retry or failed):
                continue
            try:
                await self.settle()
                failed = False
            except (OSError, CommitfsError) as exc:
                # Whoever saves next is told.  Want of room passes; what else there is does not.
                if not failed:
                    log.warning("staged changes could not be committed: %s", exc)
                failed = True
                if self.store.latched is None and self.live.broken is None:
                    self._staged.set()
