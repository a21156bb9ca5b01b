"""The store: one writer, many readers (P8), behind one class."""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final

from commitfs import native
from commitfs.errors import CorruptError, NotFoundError, ReadOnlyError
from commitfs.format.node import NO_ROOT
from commitfs.format.record import COMMIT, RECORD_SIZE, Record, WalkState, parse
from commitfs.format.slot import DEFAULT_ALIGN
from commitfs.store.file import STAGE_ALIGN, StoreFile, open_file
from commitfs.store.heads import Heads
from commitfs.store.index import Index, Skips
from commitfs.store.log import Entry, Log, Ticket
from commitfs.store.make import make_file, new_image
from commitfs.store.nodes import Nodes
from commitfs.store.recover import Found, look, recover
from commitfs.store.tree import Tree
from commitfs.store.txn import BYTES_LIMIT, Txn
from commitfs.store.walk import follow
from commitfs.types import OFFSET_LIMIT, CommitId

_SLACK: Final = 64 << 10
"""Room asked for beyond what a caller expects: records, padding."""
_LONG: Final = 1 << 20
"""A read longer than this first asks whether the file has so much: damage must not cost memory."""
_PEEK: Final = 4096
"""Bytes a reader reads to see whether anything was added."""


def _silent(_message: str) -> None:
    pass


class Store:
    """Made by `Store.open`.  `read`, `read_checked`, `bytes_of`, `record`, `record_at` and `records` are
    thread-safe; all else belongs to one thread."""

    nodes: Nodes

    def __init__(
        self,
        path: str,
        file: StoreFile,
        found: Found,
        log: Log | None,
        opener: Callable[[str, bool], StoreFile],
        report: Callable[[str], None],
    ) -> None:
        self.path = os.path.abspath(path)
        self.writable = log is not None
        self.log = log
        self.file = file
        self._opener = opener
        self._report = report
        self._superseded: list[StoreFile] = []
        self._refused: Exception | None = None
        self._skips: Skips | None = None
        self._first_id = 1
        self._adopt_found(found)

    def _adopt_found(self, found: Found) -> None:
        self.align = found.slot.align
        self.store_number = found.slot.store
        self.uuid = found.slot.uuid
        self._head = found.head
        self._end = found.state.offset
        self._oldest = found.slot.oldest_id
        self._index = Index(
            self.read,
            found.slot.store,
            placed=self.log.placed if self.log is not None else None,
            report=self._report,
            size=lambda: self.file.size(),
            copies=found.copies(),
        )
        self.nodes = Nodes(self)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, align: int = DEFAULT_ALIGN) -> None:
        """Make a store without commits, mode 0600, whole or not at all; UsageError if `path` exists.

        `align`: groups of commits begin at multiples of this, for media that may damage bytes beside
        those being written: 8, 512 or 4096.
        """
        make_file(os.fspath(path), new_image(align))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        writable: bool = False,
        opener: Callable[[str, bool], StoreFile] = open_file,
        report: Callable[[str], None] = _silent,
    ) -> "Store":
        """Open an existing store; for writing with recovery, and locked.

        UsageError: missing, a directory.  FormatError: not a store, empty, or of a newer format.
        LockedError.  CorruptError: truncated, or both slots and the log's start are lost.  A file that
        is refused is not changed.  A damaged log is opened read-only (`writable` is False then, and
        `latched` says why).  `report` gets what people should know, in one line each.
        """
        path = os.fspath(path)
        file = opener(path, writable)
        try:
            if not writable:
                return cls(path, file, look(file, path, report), None, opener, report)
            found, tail = recover(file, path, report)
            if found.damage or found.no_writing:
                store = cls(path, file, found, None, opener, report)
                store._refused = (
                    CorruptError(found.damage) if found.damage else ReadOnlyError(found.no_writing)
                )
                return store
            log = Log(
                file,
                found.state,
                head=found.head,
                align=found.slot.align,
                tail=tail,
                heads=Heads(file, found.slots, found.slot),
            )
            store = cls(path, file, found, log, opener, report)
            if found.head is not None and not found.head.session:
                store._continue_earlier(log, found.head)
            return store
        except BaseException:
            file.close()
            raise

    def _continue_earlier(self, log: Log, head: Record) -> None:
        """The first record behind a PURETRE2 head: a commit of the same tree, so that the newest state
        has a record; what came before has none."""
        record = log.bare(COMMIT, 0)._replace(
            id=head.id + 1,
            parent_id=head.id,
            root_offset=head.root_offset,
            root_word=head.root_word,
            root_crc=head.root_crc,
            time_ns=head.time_ns,
            branch=head.branch,
        )
        log.place(record, [])
        self.flush()

    def close(self) -> None:
        """Write what is queued, name the newest commit in a slot, give up the lock.  OSError if what was
        queued could not be written."""
        log, self.log = self.log, None
        try:
            if log is not None:
                self._head = log.head
                self._end = log.published_end
                if log.in_flight is None and log.latched is None:
                    _flush(log)
                    log.finish()
        finally:
            self.file.close()
            for file in self._superseded:
                file.close()

    # -- what there is ---------------------------------------------------------------------------

    @property
    def head(self) -> Record | None:
        """Newest commit: for the writer newest placed, maybe not durable yet.  None: no commit yet."""
        return self.log.head if self.log is not None else self._head

    @property
    def durable_id(self) -> CommitId:
        head = self.log.durable_head if self.log is not None else self._head
        return CommitId(head.id if head is not None else 0)

    @property
    def next_id(self) -> CommitId:
        head = self.head
        return CommitId(head.id + 1 if head is not None else self._first_id)

    @property
    def oldest_id(self) -> CommitId:
        """Oldest commit that has a record, 0: no commit yet."""
        if self.log is not None:
            return CommitId(self.log.oldest[0])
        head = self._head
        if head is None:
            return CommitId(0)
        return CommitId(self._oldest or (1 if head.session else head.id))

    @property
    def published_end(self) -> int:
        return self.log.published_end if self.log is not None else self._end

    @property
    def file_bytes(self) -> int:
        return self.file.size()

    @property
    def latched(self) -> Exception | None:
        """Why no commit is taken any more; None: nothing has happened."""
        return self.log.latched if self.log is not None else self._refused

    # -- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the log, of commits in flight and stages too; CorruptError if there are fewer, or the
        device cannot read them."""
        log = self.log
        segments = log.pending.within(offset, length) if log is not None else ()
        at, end = offset, offset + length
        parts = []
        for start, data in segments:
            if start > at:
                parts.append(self._pread(start - at, at))
                at = start
            piece = data[at - start : end - start]
            parts.append(piece if type(piece) is bytes else bytes(piece))
            at += len(piece)
        if at < end:
            parts.append(self._pread(end - at, at))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pread(self, length: int, offset: int) -> bytes:
        if offset + length < OFFSET_LIMIT and (length <= _LONG or offset + length <= self.file.size()):
            try:
                data = self.file.pread(length, offset)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                raise CorruptError("what the device cannot read", offset) from error
            if len(data) == length:
                return data
        raise CorruptError("what should lie in the store, beyond its end,", offset)

    def read_checked(self, offset: int, length: int, crc: int, what: str = "data") -> bytes:
        """Bytes of the log; CorruptError if their CRC32C is not `crc`."""
        data = self.read(offset, length)
        if native.crc32c(data) != crc:
            raise CorruptError(what, offset)
        return data

    def bytes_of(self, record: Record) -> bytes:
        """The commit's bytes, unchecked."""
        return self.read(record.bytes_offset, record.length)

    def tree(self, record: Record | None) -> Tree:
        """The tree of a commit; of None the empty tree."""
        return Tree(self.nodes, record.root if record is not None else NO_ROOT)

    def record(self, commit_id: int) -> Record:
        """O(log n) reads; NotFoundError, CorruptError."""
        head = self.head
        if head is None or not 0 < commit_id <= head.id:
            raise NotFoundError(f"there is no commit {commit_id}")
        return self._index.by_id(head, commit_id)

    def record_at(self, time_ns: int) -> Record:
        """The newest commit not after `time_ns`; NotFoundError."""
        head = self.head
        if head is None:
            raise NotFoundError("there is no commit yet")
        return self._index.by_time(head, time_ns)

    def records(self, newest: int | None = None) -> Iterator[Record]:
        """All commits from `newest` (the head) back, newest first."""
        return self._index.back_from(self.head if newest is None else self.record(newest))

    def refresh(self) -> bool:
        """Follow the writer, in another process, to the newest commit; whether there is a newer one.

        Raises what `open` raises where another file has taken the store's place and is none.
        """
        if self.writable or self._refused is not None:
            return False
        before = self._head
        if self.file.replaced():
            self._take_over()
        elif before is None or not before.session:
            self._look_again()
        elif not self._still_there(before):
            # Another writer found that commit torn and overwrote it.
            self._look_again()
            self.file.drop_cache(self._end)
            self.nodes.forget(self._end)
            self._index.forget()
        else:
            state = WalkState.after(before)
            head, _ = follow(self.file, state, window=_PEEK)
            self._head = head or before
            self._end = state.offset
        return self._head != before

    def _take_over(self) -> None:
        """Go on in the file that has taken this one's place.  Where that is no store, or cannot be read,
        this one stays as it was, and the next refresh tries again."""
        fresh = self._opener(self.path, False)
        try:
            found = look(fresh, self.path, self._report)
        except BaseException:
            fresh.close()
            raise
        self._superseded.append(self.file)
        self.file = fresh
        self._adopt_found(found)

    def _still_there(self, head: Record) -> bool:
        found = parse(self.file.pread(RECORD_SIZE, head.offset), native.crc32c)
        return found is not None and found.crc == head.crc

    def _look_again(self) -> None:
        found = look(self.file, self.path, _silent)
        self._head, self._end, self._oldest = found.head, found.state.offset, found.slot.oldest_id

    # -- writing ---------------------------------------------------------------------------------

    def _writer(self) -> Log:
        if self.log is None:
            if self._refused is not None:
                raise ReadOnlyError(f"{self.path} is read-only: {self._refused}")
            raise ReadOnlyError(f"{self.path} was opened for reading")
        self.log.check_writable()
        return self.log

    def reserve(self, nbytes: int) -> None:
        """Guarantee that commits of `nbytes` in all, not begun yet, will fit.  ENOSPC, EDQUOT, EFBIG."""
        log = self._writer()
        log.reserved = nbytes
        log.tail.reserve(log.placed_end + nbytes + _SLACK)

    def begin(self, expect: int = 0) -> Txn:
        """Begin a commit of about `expect` bytes.

        ReadOnlyError.  OSError ENOSPC and the like if `expect` bytes cannot be had: nothing has
        happened then.  Until `finish` or `abort` the caller does not await.
        """
        log = self._writer()
        if log.open:
            raise RuntimeError("another commit is begun and not finished")
        if self._skips is None:
            self._skips = self._index.skips_from(log.head)
        surplus: Entry | None = None
        if expect > BYTES_LIMIT:
            surplus = self._begin_surplus(log, expect - BYTES_LIMIT)
        else:
            log.tail.reserve(log.placed_end + expect + _SLACK)
        return Txn(log, self._skips, surplus, self.next_id)

    def number_from(self, commit_id: int) -> None:
        """Give the first commit of a store that has none this id, since it goes on where another ended."""
        self._first_id = commit_id
        self._skips = Skips.without_records(commit_id - 1)

    def _begin_surplus(self, log: Log, nbytes: int) -> Entry:
        end = log.stage_end(nbytes + STAGE_ALIGN)
        log.tail.lay_behind(end, BYTES_LIMIT + _SLACK + log.reserved)
        entry = log.place_stage(end)
        assert entry is not None, "nothing was placed since its end was chosen"
        return entry

    def flush(self) -> None:
        """Write all queued commits now, blocking.  OSError, ReadOnlyError: they stay queued."""
        _flush(self._writer())


def _flush(log: Log) -> None:
    """One group after the other, with what is due beside them."""
    while True:
        log.do_chores()
        group = log.take()
        if group is None:
            break
        log.write(group)
        error = group.entries[0].ticket.error
        if error is not None:
            raise error


__all__ = ["Store", "Ticket", "Txn"]
