"""Records by id and by time: along the skip pointers, O(log n) reads, and no index to keep."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from commitfs import native
from commitfs.errors import CorruptError, NotFoundError
from commitfs.format.record import RECORD_SIZE, Record, parse, skip_id

_CACHED: Final = 4096


class Index:
    """Thread-safe.  `read` gives the log's bytes at an offset; `placed` are records not written yet."""

    def __init__(
        self, read: Callable[[int, int], bytes], store: int, placed: Mapping[int, Record] | None = None
    ) -> None:
        self._read = read
        self._placed = placed if placed is not None else {}
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
            raise CorruptError(f"the record of commit {commit_id}", offset)
        record = found.confirm(offset=offset, store=self._store, id=commit_id)
        self.remember(record)
        return record

    def previous(self, record: Record) -> Record | None:
        return self.at(record.prev, record.id - 1) if record.prev else None

    def skipped(self, record: Record) -> Record | None:
        """The commit the skip pointer leads to."""
        return self.at(record.skip, skip_id(record.id)) if record.skip else None

    def skip_of_next(self, head: Record) -> int:
        """Offset the skip pointer of the commit after `head` holds, 0: none in this log."""
        before = skip_id(head.id)
        target = skip_id(head.id + 1)
        if target == head.id:
            return head.offset
        if not target or not head.skip:
            return 0
        return self.at(head.skip, before).skip

    def by_id(self, head: Record, commit_id: int) -> Record:
        """The commit `commit_id`, not newer than `head`; NotFoundError."""
        record: Record | None = head
        while record is not None and record.id > commit_id:
            far = record.skip and skip_id(record.id) >= commit_id
            record = self.skipped(record) if far else self.previous(record)
        if record is None or record.id != commit_id:
            raise NotFoundError(f"there is no commit {commit_id}")
        return record

    def by_time(self, head: Record, time_ns: int) -> Record:
        """The newest commit at or before `head` that is not after `time_ns`; NotFoundError.

        Times never go backwards along ids, which makes them searchable as ids are.
        """
        record = head
        while record.time_ns > time_ns:
            far = self.skipped(record)
            if far is not None and far.time_ns > time_ns:
                record = far
                continue
            near = self.previous(record)
            if near is None:
                raise NotFoundError("there is no commit so old")
            record = near
        return record

    def back_from(self, record: Record | None) -> Iterator[Record]:
        """`record` and all before it, newest first."""
        while record is not None:
            yield record
            record = self.previous(record)


__all__ = ["Index"]
