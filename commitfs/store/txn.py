"""One commit from begin to finish."""

from typing import Final

from commitfs import native
from commitfs.format.node import Root
from commitfs.format.record import COMMIT, RECORD_SIZE, Record, root_word
from commitfs.store.file import STAGE_ALIGN, rounded_up
from commitfs.store.index import Skips
from commitfs.store.log import JOIN_BELOW, Entry, Log, Ticket
from commitfs.types import Buffer, CommitId

BYTES_LIMIT: Final = 4 << 20
"""Recovery reads the bytes of commits: what goes beyond this is staged."""
_STAGE_WRITE: Final = 1 << 20


class _Surplus:
    """A stage of one commit, for the bytes beyond BYTES_LIMIT."""

    def __init__(self, log: Log, entry: Entry) -> None:
        self.entry = entry
        self._log = log
        self._written = self._placed = rounded_up(entry.record.bytes_offset, STAGE_ALIGN)
        self._end = entry.record.end
        self._parts: list[bytes] = []

    def fits(self, data: bytes) -> bool:
        return self._placed + len(data) <= self._end

    def add(self, data: bytes) -> int:
        offset = self._placed
        self._log.pending.add(offset, data)
        self._parts.append(data)
        self._placed += len(data)
        if self._placed - self._written >= _STAGE_WRITE:
            self._write((self._placed - self._written) // STAGE_ALIGN * STAGE_ALIGN)
        return offset

    def _write(self, size: int) -> None:
        """Write the first `size` bytes that wait, padded with zeros."""
        waiting = b"".join(self._parts)
        data = waiting[:size].ljust(size, b"\0")
        try:
            self._log.file.write_stage(data, self._written)
        except OSError as error:
            # Also for want of room, which was allocated: the tree that refers to these bytes is built.
            self._log.latch(error)
            raise
        self._forget()
        self._written += size
        rest = waiting[size:]
        self._parts = [rest] if rest else []
        self._log.pending.add(self._written, rest)

    def _forget(self) -> None:
        at = self._written
        for part in self._parts:
            self._log.pending.remove(at)
            at += len(part)

    def sync(self) -> None:
        waiting = self._placed - self._written
        if waiting:
            self._write(rounded_up(waiting, STAGE_ALIGN))
        file = self._log.file
        try:
            file.sync_stage()
        except OSError as error:
            self._log.latch(error)
            raise
        if self._end > self._written:
            file.punch(self._written, self._end - self._written)

    def abort(self) -> None:
        self._forget()
        self._log.unplace(self.entry)


class Txn:
    """A commit being placed.  No other is begun, and no group taken, before `finish` or `abort`."""

    def __init__(self, log: Log, skips: Skips, surplus: Entry | None, commit_id: CommitId) -> None:
        self._log = log
        self._skips = skips
        self._surplus = _Surplus(log, surplus) if surplus is not None else None
        self._offset = log.placed_end
        self._buffers: list[bytes] = []
        self._length = 0
        self.id = commit_id
        log.open = True

    @property
    def next_offset(self) -> int:
        """Where `add` will put what comes next, as one run whatever its size; 0: that depends."""
        return self._offset + RECORD_SIZE + self._length if self._surplus is None else 0

    def add(self, data: Buffer) -> int:
        """Give `data` a place among the commit's bytes; its offset in the log.  Readable once the
        commit is finished."""
        kept = data if type(data) is bytes else bytes(data)
        surplus = self._surplus
        if surplus is not None and self._length + len(kept) > BYTES_LIMIT and surplus.fits(kept):
            return surplus.add(kept)
        self._buffers.append(kept)
        self._length += len(kept)
        return self._offset + RECORD_SIZE + self._length - len(kept)

    def finish(
        self,
        *,
        root: Root,
        time_ns: int,
        branch: int = 0,
        parent: Record | None = None,
        parentless: bool = False,
    ) -> Ticket:
        """Queue the commit.  `time_ns` is the wall clock; recorded times never go backwards (P3).
        Without `parent` it follows the newest commit, or, if `parentless`, none."""
        log = self._log
        head = log.head
        if self._surplus is not None:
            self._surplus.sync()
        if parent is None and not parentless:
            parent = head
        crc = self._keep()
        prev, last = (head.offset, head.time_ns) if head is not None else (0, time_ns)
        above, above_id = (parent.offset, parent.id) if parent is not None else (0, 0)
        placed = (
            COMMIT, 0, self._offset, self.id, log.store, 0, self._length, crc, 0,
            prev, self._skips.next(), above, above_id, root.offset, root_word(root), root.crc,
            max(time_ns, last), branch, 0, 0,
        )  # fmt: skip
        record = Record._make(placed)
        log.open = False
        self._skips.placed(record.id, record.offset)
        return log.place(record, self._buffers).ticket

    def _keep(self) -> int:
        """Have the bytes readable before they are written; their checksum."""
        if len(self._buffers) > 1 and self._length <= JOIN_BELOW:
            self._buffers = [b"".join(self._buffers)]
        crc = 0
        at = self._offset + RECORD_SIZE
        for data in self._buffers:
            self._log.pending.add(at, data)
            crc = native.crc32c(data, crc)
            at += len(data)
        return crc

    def abandon(self) -> None:
        """Instead of `finish` where a tree was built that refers to these bytes: they stay readable from
        memory, and nothing may be committed any more."""
        self._keep()
        self._log.open = False

    def abort(self) -> None:
        """Nothing has happened.  Only instead of `finish`."""
        if self._surplus is not None:
            self._surplus.abort()
        self._log.open = False


__all__ = ["BYTES_LIMIT", "Txn"]
