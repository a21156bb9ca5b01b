"""Is every byte of records, commits and nodes what was written (P7)?  Finds; mends and prints nothing.

The log is walked from its first record, whatever the slots say, and each record is compared with what
the ones before it demand.  Where no record is found that belongs there, the walk goes on at the next
one that does, so that damage in one place hides nothing of the rest.  Every tree node is read from
the file and verified once, however many commits share it.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from commitfs.errors import CorruptError
from commitfs.format.node import NO_ROOT, Root
from commitfs.format.record import COMMIT, FIRST, LOG_START, RECORD_SIZE, Candidate, Fields, parse, skip_id
from commitfs.format.slot import SLOT_OFFSETS, SLOT_SIZE, Slot, Unreadable, parse_slot
from commitfs.native import crc32c
from commitfs.store.nodes import Nodes
from commitfs.store.search import next_record
from commitfs.store.store import Store


class Severity(Enum):
    DAMAGE = "damage"
    """Something that was committed cannot be trusted or read any more."""
    WARNING = "warning"
    """Nothing is lost; something is not as a writer leaves it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    severity: Severity
    commit: int
    """Commit it was found in; 0: none in particular."""
    offset: int
    """Place in the store file; -1: none in particular."""
    path: bytes
    """Path of the file concerned, relative to the root; empty: none."""
    message: str


class Seen:
    """A set of (offset, CRC32C) pairs that takes about ten bytes for each."""

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}

    def add(self, offset: int, crc: int) -> bool:
        """False if it was there."""
        page = self._pages.get(offset >> 16)
        if page is None:
            page = self._pages[offset >> 16] = array("Q")
        item = (offset & 0xFFFF) << 32 | crc
        if item in page:
            return False
        page.append(item)
        return True


def check_store(store: Store, *, progress: Callable[[int, int], None] | None = None) -> Iterator[Finding]:
    """What is wrong with slots, records, bytes of commits and tree nodes, in the log's order.

    `progress(offset, end)` is called before each record.  Reads go to the file; nothing is written.
    A store in use may be checked: what is committed meanwhile is left out.
    """
    yield from _StoreCheck(store, progress).run()


class _StoreCheck:
    def __init__(self, store: Store, progress: Callable[[int, int], None] | None) -> None:
        self.store = store
        self.progress = progress
        self.end = int(store.published_end)
        """Where the newest commit ends, as the store was opened."""
        self.first_id = 0
        self.offsets = array("Q")
        """Offsets of the records of commits, by id from `first_id`; 0 where damaged."""
        self.nodes = Seen()
        self.cache = Nodes(store, 1 << 20)
        """Of its own, so that each node is read from the file and not from what the store remembers."""
        self.slots: list[Slot] = []

    def run(self) -> Iterator[Finding]:
        yield from self._check_slots()
        yield from self._check_earlier()
        before: Candidate | None = None
        newest: Candidate | None = None
        at = self._start()
        while True:
            if self.progress is not None:
                self.progress(min(at, self.end), self.end)
            found = self._record_at(at)
            wrong = "" if found is None else self._bytes_wrong(found)
            continues = found is not None and self._continues(found, before)
            if at >= self.end and (wrong or not continues):
                # A torn commit, if nothing shows that it was durable.
                behind = self._next_record(at, at + RECORD_SIZE)
                if behind is None or self._rewritten(before):
                    break
                if self._is_there_now(at, before):
                    continue
                if not continues:
                    found = None
            elif found is None:
                behind = self._next_record(at, at)
            if found is None:
                yield self._gap(at, behind)
                if behind is None:
                    break
                before, at = None, behind.offset
                continue
            if not continues:
                yield self._damage(at, "the record does not continue the one before it", found.id)
            if wrong:
                yield self._damage(found.bytes_offset, wrong, found.id)
            yield from self._check_record(found, newest)
            if found.kind == COMMIT:
                yield from self._check_tree(found)
                newest = found
            before, at = found, found.end
        yield from self._check_heads()

    # -- slots -----------------------------------------------------------------------------------

    def _check_slots(self) -> Iterator[Finding]:
        for offset in SLOT_OFFSETS:
            try:
                slot = parse_slot(self.store.read(offset, SLOT_SIZE), crc32c)
            except CorruptError:
                slot = Unreadable.DAMAGED
            if isinstance(slot, Slot):
                self.slots.append(slot)
            else:
                yield Finding(Severity.WARNING, 0, offset, b"", f"a head slot cannot be used: {slot.value}")
        if not self.slots:
            yield Finding(Severity.DAMAGE, 0, 0, b"", "both head slots are lost; the log itself is used")

    def _start(self) -> int:
        """Where the first record is: behind the bytes of the earlier format, if there are any."""
        head = self.store.head
        if head is not None and not head.session:
            return int(head.end)
        oldest = max((slot.oldest_offset for slot in self.slots), default=0)
        return LOG_START if self._record_at(LOG_START) is not None else oldest or LOG_START

    def _check_earlier(self) -> Iterator[Finding]:
        """The newest commit of a store of the earlier format, of which no more can be known."""
        head = self.store.head
        if head is not None and not head.session:
            yield from self._check_tree(head)

    def _check_heads(self) -> Iterator[Finding]:
        """What the slots name is in the log."""
        for slot in self.slots:
            head = slot.head
            if head is None:
                continue
            if not slot.head_has_record:
                if slot.earlier and (wrong := self._bytes_wrong(head)):
                    message = f"{wrong}: torn, or damaged; the earlier format cannot tell"
                    yield Finding(Severity.WARNING, head.id, head.bytes_offset, b"", message)
                continue
            found = self._record_at(head.offset)
            if found is None or tuple(found) != tuple(head):
                yield self._damage(head.offset, "a head slot names a commit that is not there", head.id)

    # -- records ---------------------------------------------------------------------------------

    def _record_at(self, offset: int) -> Candidate | None:
        try:
            found = parse(self.store.read(offset, RECORD_SIZE), crc32c)
        except CorruptError:
            return None
        if found is None or found.offset != offset or found.store != self.store.store_number:
            return None
        return found

    def _continues(self, found: Candidate, before: Candidate | None) -> bool:
        """Whether a record continues the one before it; behind damage nothing is known of that."""
        return before is None or (
            found.chain == before.crc
            and found.id == before.id + (found.kind == COMMIT)
            and (found.session == before.session or bool(found.flags & FIRST))
        )

    def _is_there_now(self, at: int, before: Candidate | None) -> bool:
        """Whether a whole record that continues `before` is at `at`.  A writer at work may have written it
        since it was looked for, and after it what was found behind."""
        found = self._record_at(at)
        return found is not None and self._continues(found, before) and not self._bytes_wrong(found)

    def _rewritten(self, before: Candidate | None) -> bool:
        """Whether a record behind the published end has gone since: its write failed, and it was sealed anew,
        or a new writer cut it off."""
        return before is not None and before.offset >= self.end and self._record_at(before.offset) != before

    def _next_record(self, at: int, start: int) -> Candidate | None:
        """The first record from `start` on that shows that the log goes on behind `at`.

        Behind the published end that takes one written when all up to `at` was durable; others are
        what a crash left of commits that were never acknowledged.
        """

        def accept(found: Candidate) -> bool:
            ours = found.store == self.store.store_number
            return ours and (found.offset < self.end or found.synced > at)

        return next_record(self.store.read, start, int(self.store.file_bytes), accept)

    def _gap(self, at: int, behind: Candidate | None) -> Finding:
        to = self.end if behind is None else behind.offset
        where = f"no record that belongs there from offset {at} to {to}"
        first = self.first_id + len(self.offsets) if self.offsets else 0
        last = 0 if behind is None else behind.id - (behind.kind == COMMIT)
        if first and last >= first:
            lost = f"commit {first} is" if first == last else f"commits {first} to {last} are"
            where += f"; {lost} lost"
        return self._damage(at, where, first)

    def _check_record(self, found: Candidate, newest: Candidate | None) -> Iterator[Finding]:
        wrong = []
        if found.synced > found.offset:
            wrong.append(f"says that {found.synced} bytes before it were durable")
        if found.kind == COMMIT:
            self._remember(found)
            last = self._offset_of(found.id - 1)
            if last and found.prev != last:
                wrong.append(f"points to a previous commit at {found.prev}, which is at {last}")
            skip = self._offset_of(skip_id(found.id))
            if skip and found.skip != skip:
                wrong.append(f"skips to a commit at {found.skip}, which is at {skip}")
            parent = self._offset_of(found.parent_id)
            if found.parent_id >= found.id or (parent and found.parent != parent):
                wrong.append(f"names commit {found.parent_id} at {found.parent} as its parent")
            if newest is not None and found.time_ns < newest.time_ns:
                wrong.append("is older by its time than the commit before it")
        for message in wrong:
            yield self._damage(found.offset, f"the record {message}", found.id)

    def _remember(self, found: Candidate) -> None:
        if not self.offsets:
            self.first_id = found.id
        missing = found.id - self.first_id - len(self.offsets)
        if 0 <= missing <= found.offset // RECORD_SIZE:  # there is no room for more before it
            self.offsets.extend([0] * missing)
            self.offsets.append(found.offset)

    def _offset_of(self, commit: int) -> int:
        """0: not known."""
        index = commit - self.first_id
        return self.offsets[index] if 0 <= index < len(self.offsets) else 0

    # -- bytes and nodes -------------------------------------------------------------------------

    def _bytes_wrong(self, found: Fields) -> str:
        """What is wrong with a commit's bytes; a stage's are for those who refer to them."""
        if found.kind != COMMIT:
            return ""
        try:
            data = self.store.read(found.bytes_offset, found.length)
        except CorruptError as exc:
            return f"the commit's bytes cannot be read: {exc}"
        return "" if crc32c(data) == found.bytes_crc else "the commit's bytes do not fit their checksum"

    def _check_tree(self, found: Fields) -> Iterator[Finding]:
        if found.root == NO_ROOT:
            return
        waiting: list[tuple[Root, bytes, bytes | None]] = [(found.root, b"", None)]
        while waiting:
            pointer, lo, hi = waiting.pop()
            if not self.nodes.add(pointer.offset, pointer.crc):
                continue
            if not LOG_START <= pointer.offset <= found.end - pointer.length:
                yield self._damage(pointer.offset, "a tree node lies outside the log", found.id)
                continue
            try:
                entries = self.cache.entries(pointer)
            except CorruptError as exc:
                yield self._damage(pointer.offset, str(exc), found.id)
                continue
            first = entries[1 if pointer.level else 0 :][:1]
            if (first and first[0][0] < lo) or (hi is not None and entries[-1][0] >= hi):
                yield self._damage(pointer.offset, "a tree node has keys that belong to another", found.id)
            if pointer.level:
                bounds = [key for key, _ in entries[1:]]
                below = zip(entries, [lo, *bounds], [*bounds, hi], strict=True)
                waiting.extend(reversed([(Root.unpack(value), at, end) for (_, value), at, end in below]))

    def _damage(self, offset: int, message: str, commit: int) -> Finding:
        return Finding(Severity.DAMAGE, commit, offset, b"", message)
