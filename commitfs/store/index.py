"""Records by id and by time: along the skip pointers, O(log n) reads, and no index to keep."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from commitfs import native
from commitfs.errors import CorruptError, NotFoundError
from commitfs.format.record import COMMIT, LOG_START, MAGIC, RECORD_SIZE, Record, parse, skip_id
from commitfs.types import OFFSET_LIMIT

_CACHED: Final = 4096
_WINDOW: Final = 256 << 10
_PAGE: Final = 4096


def as_far_as_readable(read: Callable[[int, int], bytes], offset: int, length: int) -> bytes:
    """Bytes of the log to be searched, with zeros where they cannot be read: one bad sector hides no
    more than its own page."""
    try:
        return read(offset, length)
    except CorruptError:
        parts = []
        at, end = offset, offset + length
        while at < end:
            upto = min(at // _PAGE * _PAGE + _PAGE, end)
            try:
                parts.append(read(at, upto - at))
            except CorruptError:
                parts.append(bytes(upto - at))
            at = upto
        return b"".join(parts)


class Skips:
    """The newest commit, its skip target, that one's, and so on: id, and offset or 0 where that commit
    is not in this log or could not be read.

    The next commit points at the third of them if the first two steps are equally long, else at the
    first (`skip_id`), and so needs no reading.
    """

    def __init__(self, chain: list[tuple[int, int]]) -> None:
        self._chain = chain[::-1]
        """Newest last."""
        self._leap = False

    @classmethod
    def without_records(cls, commit_id: int) -> "Skips":
        """After commit `commit_id`, which is not in this log, as is none before it."""
        chain = []
        while commit_id:
            chain.append((commit_id, 0))
            commit_id = skip_id(commit_id)
        return cls(chain)

    def next(self) -> int:
        """Offset that the next commit's skip pointer holds; 0: none."""
        chain = self._chain
        self._leap = False
        if len(chain) > 1:
            newest, second = chain[-1][0], chain[-2][0]
            third, offset = chain[-3] if len(chain) > 2 else (0, 0)
            if newest - second == second - third:
                self._leap = True
                return offset
        return chain[-1][1] if chain else 0

    def placed(self, commit_id: int, offset: int) -> None:
        """The next commit was placed, with the skip pointer just given."""
        if self._leap:
            del self._chain[-2:]
        self._chain.append((commit_id, offset))


class Index:
    """Thread-safe.  `read` gives the log's bytes at an offset; `placed` are records not written yet;
    `report` is told, once for each place, what is damaged and was passed by; `size` tells where the file
    ends; `copies` are records that slots hold too, by offset."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        store: int,
        *,
        placed: Mapping[int, Record] | None = None,
        report: Callable[[str], None] = lambda message: None,
        size: Callable[[], int] = lambda: OFFSET_LIMIT,
        copies: Mapping[int, Record] | None = None,
    ) -> None:
        self._read = read
        self._placed = placed if placed is not None else {}
        self._report = report
        self._size = size
        self._copies = copies if copies is not None else {}
        self._reported: set[int] = set()
        self._store = store
        self._cache: OrderedDict[int, Record] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, record: Record) -> None:
        with self._lock:
            self._cache[record.offset] = record
            self._cache.move_to_end(record.offset)
            if len(self._cache) > _CACHED:
                self._cache.popitem(last=False)

    def forget(self) -> None:
        """Drop what was remembered: the log's end is not what it was."""
        with self._lock:
            self._cache.clear()

    def at(self, offset: int, commit_id: int) -> Record:
        """The record of commit `commit_id`, which a pointer says is at `offset`; CorruptError."""
        waiting = self._placed.get(offset)
        if waiting is not None:
            return waiting
        with self._lock:
            known = self._cache.get(offset)
            if known is not None and known.id == commit_id:
                self._cache.move_to_end(offset)
                return known
        found = parse(self._read(offset, RECORD_SIZE), native.crc32c)
        if found is None:
            copy = self._copies.get(offset)
            if copy is None or copy.id != commit_id:
                raise CorruptError(f"the record of commit {commit_id}", offset)
            return copy
        record = found.confirm(offset=offset, store=self._store, id=commit_id)
        self.remember(record)
        return record

    def previous(self, record: Record) -> Record | None:
        return self._before(record, record.prev, record.id - 1) if record.prev else None

    def skipped(self, record: Record) -> Record | None:
        """The commit the skip pointer leads to."""
        return self._before(record, record.skip, skip_id(record.id)) if record.skip else None

    def _before(self, record: Record, offset: int, commit_id: int) -> Record:
        """What a pointer of `record` leads to.  CorruptError, at its own offset, where it does not lead
        back: whoever goes on from there would come by here again."""
        if not LOG_START <= offset < record.offset:
            raise CorruptError(f"the record of commit {record.id}", record.offset)
        return self.at(offset, commit_id)

    def skips_from(self, head: Record | None) -> Skips:
        """What a writer needs to give the commits after `head` their skip pointers: O(log n) reads."""
        chain = []
        record = head
        commit_id = head.id if head is not None else 0
        while commit_id:
            chain.append((commit_id, record.offset if record is not None else 0))
            commit_id = skip_id(commit_id)
            try:
                record = self.skipped(record) if record is not None else None
            except CorruptError:
                record = None  # searches will pass here along prev, one commit at a time
        return Skips(chain)

    def by_id(self, head: Record, commit_id: int) -> Record:
        """The commit `commit_id`, not newer than `head`; NotFoundError, CorruptError."""
        record: Record | None = head
        while record is not None and record.id > commit_id:
            far = record.skip != 0 and skip_id(record.id) >= commit_id
            try:
                record = self.skipped(record) if far else self.previous(record)
            except CorruptError as error:
                record = self._before_damage(error)
                if record is None or record.id < commit_id:
                    raise
        if record is None or record.id != commit_id:
            raise NotFoundError(f"there is no commit {commit_id}")
        return record

    def by_time(self, head: Record, time_ns: int) -> Record:
        """The newest commit at or before `head` that is not after `time_ns`; NotFoundError,
        CorruptError.

        Times never go backwards along ids, which makes them searchable as ids are.
        """
        record = head
        while record.time_ns > time_ns:
            try:
                far = self.skipped(record)
            except CorruptError:
                far = None
            if far is not None and far.time_ns > time_ns:
                record = far
                continue
            try:
                near = self.previous(record)
            except CorruptError as error:
                near = self._before_damage(error)
                if near is None:
                    raise
            if near is None:
                raise NotFoundError(
                    f"no commit is as old as {_local(time_ns)}: the oldest is of {_local(record.time_ns)}"
                )
            record = near
        return record

    def back_from(self, record: Record | None) -> Iterator[Record]:
        """`record` and all before it, newest first; what is damaged is reported and left out."""
        while record is not None:
            yield record
            try:
                record = self.previous(record)
            except CorruptError as error:
                record = self._before_damage(error)

    def _before_damage(self, error: CorruptError) -> Record | None:
        """The newest whole record of a commit below the one that is damaged.

        Where no pointer leads any more the log itself is searched, backwards.  A record that says where
        it lies, and in which store, is no user's data.
        """
        if error.offset not in self._reported:
            self._reported.add(error.offset)
            self._report(f"{error}: run commitfs check")
        size = self._size()
        end = min(error.offset, size) + 7 & ~7
        while end > LOG_START:
            start = max(end - _WINDOW, LOG_START)
            window = as_far_as_readable(self._read, start, min(end + RECORD_SIZE - 8, size) - start)
            at = window.rfind(MAGIC, 0, end - start + len(MAGIC) - 1)
            while at >= 0:
                found = parse(window, native.crc32c, at) if not at % 8 else None
                if (
                    found is not None
                    and found.kind == COMMIT
                    and (found.offset, found.store) == (start + at, self._store)
                ):
                    return found.confirm(offset=found.offset, store=found.store, id=found.id)
                at = window.rfind(MAGIC, 0, at)
            end = start
        return None


def _local(time_ns: int) -> str:
    """As people read it; a time before the calendar's as the number it is."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // 1_000_000_000))
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"


__all__ = ["Index", "Skips", "as_far_as_readable"]
