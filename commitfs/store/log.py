"""The writer's log: places records, seals them in groups, and keeps account of what is durable.

    begin -> place bytes -> finish     a commit gets its offsets and waits in the queue
    take                               all that waits becomes a group: sealed, one contiguous range
    written | failed                   the range was synced, or was not

S3: one group is in flight at a time and groups are acknowledged in order, so a record's `synced` is
    the published end at the moment it was sealed.
S5: ids and offsets are given out at placement and never change; session, chain and checksum are given
    at sealing, so that a group that failed for want of room is sealed anew, in a new session.
S6: a failed sync latches: nothing is written any more, since the kernel may have dropped the pages.
S14: the placed end moves, and groups are taken, only where no commit is half placed.
(docs/format.md has all invariants.)
Everything here runs in one thread, the event loop's, except `chores`.
"""

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from commitfs import native
from commitfs.errors import ReadOnlyError
from commitfs.format.record import (
    COMMIT,
    FIRST,
    LAST,
    PAD,
    RECORD_SIZE,
    STAGE,
    Record,
    WalkState,
    seal,
)
from commitfs.store.file import STAGE_ALIGN, StoreFile, WriteFailed, is_no_room, rounded_up
from commitfs.store.heads import BYTES_APART, Heads
from commitfs.store.pending import Pending
from commitfs.store.tail import Tail
from commitfs.types import Buffer

JOIN_BELOW: Final = 1 << 20
"""Groups up to this many bytes are copied into one buffer: cheaper than many pieces."""


class Ticket:
    """What a finished commit is waited for with."""

    __slots__ = ("done", "error", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        """Complete once it was sealed for its write."""
        self.done = False
        """Durable."""
        self.error: BaseException | None = None
        """Why it is not: for want of room, it stays queued and may still become durable; otherwise
        it never will."""


class Entry:
    """A record with a place, and its bytes."""

    __slots__ = ("buffers", "record", "ticket")

    def __init__(self, record: Record, buffers: Sequence[Buffer]) -> None:
        self.record = record
        self.buffers = buffers
        self.ticket = Ticket(record)


class Group:
    """What is written as one range by one sync."""

    __slots__ = ("buffers", "chain", "entries", "offset", "size")

    def __init__(self, entries: list[Entry], buffers: list[Buffer], chain: int) -> None:
        self.entries = entries
        self.offset = entries[0].record.offset
        self.size = sum(map(len, buffers))
        self.buffers: list[Buffer] = [b"".join(buffers)] if self.size <= JOIN_BELOW else buffers
        self.chain = chain

    @property
    def end(self) -> int:
        return self.entries[-1].record.end


def draw_number() -> int:
    """A store or session number: 64 random bits, never 0, which means none."""
    return secrets.randbits(64) or 1


class Log:
    def __init__(
        self,
        file: StoreFile,
        start: WalkState,
        *,
        head: Record | None,
        align: int,
        tail: Tail,
        heads: Heads,
        draw: Callable[[], int] = draw_number,
    ) -> None:
        """`start` is where the recovered walk ended."""
        self.file = file
        self.tail = tail
        self.heads = heads
        self.pending = Pending()
        self.head = head
        """Newest commit placed."""
        self.oldest = (heads.newest.oldest_id, heads.newest.oldest_offset)
        """Id and offset of the oldest commit kept; 0, 0 as long as there is none."""
        self.durable_head = head
        self.placed_end = start.offset
        self.published_end = start.offset
        self.latched: Exception | None = None
        self.in_flight: Group | None = None
        self.queue: deque[Entry] = deque()
        self.placed: dict[int, Record] = {}
        """Commits that have a place and are not durable, by offset."""
        self.open = False
        """A commit is between begin and finish."""
        self.store = start.store
        self.reserved = 0
        """Bytes of commits to come for which room is guaranteed."""
        self._align = align
        self._chain = start.chain
        self._draw = draw
        self._session = draw()
        self._first = True

    # -- placing ---------------------------------------------------------------------------------

    def check_writable(self) -> None:
        if self.latched is not None:
            raise ReadOnlyError(f"the store takes no commits until it is opened again: {self.latched}")

    def place(self, record: Record, buffers: Sequence[Buffer]) -> Entry:
        """Queue a record whose place is the placed end, and its bytes."""
        entry = Entry(record, buffers)
        self.queue.append(entry)
        self.placed_end = record.end
        if record.kind == COMMIT:
            self.head = record
            self.placed[record.offset] = record
            if not self.oldest[0]:
                self.oldest = (record.id, record.offset)
        return entry

    def bare(self, kind: int, length: int, *, branch: int = 0) -> Record:
        """A record without a root for the placed end."""
        id_ = self.head.id if self.head is not None else 0
        offset = self.placed_end
        return Record(kind, 0, offset, id_, self.store, 0, length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, branch, 0, 0)

    def stage_end(self, nbytes: int) -> int:
        """Where a stage for `nbytes` would end: above all zeros, so that the next tail can be laid
        behind it while commits still go into the present one."""
        start = max(self.tail.zeros_end, self.placed_end + RECORD_SIZE)
        return rounded_up(start + nbytes, STAGE_ALIGN)

    def place_stage(self, end: int) -> Entry | None:
        """Queue a stage from the placed end to `end`, prepared with `tail.lay_behind`; None if commits
        have meanwhile left too little of it."""
        length = end - self.placed_end - RECORD_SIZE
        if length < STAGE_ALIGN:
            return None
        entry = self.place(self.bare(STAGE, length), [])
        self.tail.step_over(end)
        return entry

    def unplace(self, entry: Entry) -> None:
        """Take back the entry placed last, which no group has taken."""
        assert self.queue[-1] is entry
        self.queue.pop()
        self.placed_end = entry.record.offset

    # -- writing ---------------------------------------------------------------------------------

    def take(self) -> Group | None:
        """Seal what waits, up to the first stage, whose data lies in between, or about as many bytes as a
        recovery should read; None if nothing does.  The group is in flight until `written` or
        `failed`."""
        assert self.in_flight is None
        assert not self.open
        if not self.queue or self.latched is not None:
            return None
        entries = []
        start = self.queue[0].record.offset
        while self.queue:
            entries.append(self.queue.popleft())
            last = entries[-1].record
            if last.kind == STAGE or (self._align == 8 and last.end - start >= BYTES_APART):
                break
        try:
            if self._align > 8 and not self.queue and entries[-1].record.end % self._align:
                entries.append(self._pad())
            group = self._seal(entries)
        except BaseException:  # no memory: whoever takes next seals them anew
            self.queue.extendleft(reversed(entries))
            raise
        self.tail.claim(group.end)  # with what a pad leaves unwritten: zeros must not share its unit
        self.in_flight = group
        return group

    def _pad(self) -> Entry:
        gap = -(self.placed_end + RECORD_SIZE) % self._align
        self.place(self.bare(PAD, gap, branch=self._align), [])
        return self.queue.pop()

    def _seal(self, entries: list[Entry]) -> Group:
        chain = self._chain
        flags = FIRST if self._first else 0
        buffers: list[Buffer] = []
        newest = self.head
        for entry in entries:
            if entry is entries[-1]:
                flags |= LAST
            record, data = seal(
                entry.record,
                session=self._session,
                flags=flags,
                synced=self.published_end,
                chain=chain,
                checksum=native.crc32c,
            )
            entry.record = entry.ticket.record = record
            if record.kind == COMMIT:
                self.placed[record.offset] = record
                if newest is not None and newest.offset == record.offset:
                    self.head = record
            chain = record.crc
            flags = 0
            buffers.append(data)
            if entry.buffers:
                buffers += entry.buffers
                if filler := -record.length % 8:
                    buffers.append(bytes(filler))
        return Group(entries, buffers, chain)

    def write(self, group: Group) -> None:
        """Write a group taken, and record the outcome; the caller finds it in the tickets."""
        try:
            self.file.write_durable(group.buffers, group.offset)
        except OSError as error:
            self.failed(group, error)
        else:
            self.written(group)

    def written(self, group: Group) -> None:
        self.in_flight = None
        self._chain = group.chain
        self._first = False
        self.published_end = group.end
        for entry in group.entries:
            record = entry.record
            if record.kind == COMMIT:
                self.durable_head = record
                del self.placed[record.offset]
            at = record.bytes_offset
            for buffer in entry.buffers:
                self.pending.remove(at)
                at += len(buffer)
            entry.ticket.error = None
            entry.ticket.done = True

    def failed(self, group: Group, error: OSError) -> None:
        self.in_flight = None
        self._session = self._draw()
        self._first = True
        self.queue.extendleft(reversed(group.entries))
        if isinstance(error, WriteFailed):
            for entry in self.queue:  # those behind cannot overtake it
                entry.ticket.error = error
            return
        for entry in group.entries:
            entry.ticket.error = error
        self.latch(error)

    def latch(self, error: OSError) -> None:
        """A sync failed: nothing is written any more (S6)."""
        if self.latched is None:
            self.latched = error
        for entry in self.queue:
            if entry.ticket.error is None:
                entry.ticket.error = ReadOnlyError(f"nothing can be saved any more: {error}")

    # -- beside the commits ----------------------------------------------------------------------

    def slot_due(self) -> bool:
        return self.durable_head is not None and self.heads.due(self.durable_head)

    def chores_due(self) -> bool:
        return self.latched is None and (self.slot_due() or self.tail.low(self.placed_end))

    def chores(self) -> None:
        """Lay zeros and write a slot where due.  May run in a thread of its own, one at a time; the
        caller latches what this raises.  A lack of room is not raised: it may pass."""
        try:
            if self.tail.low(self.placed_end):
                self.tail.extend(self.placed_end)
            if self.slot_due():
                self.name_head()
        except OSError as error:
            if not is_no_room(error):
                raise

    def do_chores(self) -> None:
        """What is due, at once."""
        if self.chores_due():
            try:
                self.chores()
            except OSError as error:
                self.latch(error)

    def finish(self) -> None:
        """The last act of a writer: name the newest commit, give back room nobody needed.  OSError."""
        try:
            if self.durable_head is not None and self.durable_head.id != self.heads.named:
                self.name_head()
            if self.tail.room_end > self.tail.zeros_end:
                self.file.truncate(self.tail.zeros_end)
        except OSError as error:
            if not is_no_room(error):
                raise

    def name_head(self) -> None:
        """Write the newest acknowledged commit into the older slot."""
        if self.durable_head is not None:
            self.heads.write(self.durable_head, oldest=self.oldest)


__all__ = ["JOIN_BELOW", "Entry", "Group", "Log", "Ticket", "draw_number"]
