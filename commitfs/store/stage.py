"""Stages: data of large files, in the log before the commit that refers to it.

A piece of the log is reserved by a stage record, which is synced; data is filled in behind it through a
descriptor of its own, one write in flight, and synced before the commit is queued.

Atomicity rests on where this awaits: G1, room in a piece is looked for and taken without an await in
between; G2, one task at a time reserves a piece (`_reserving`), one writes (`_pumping`).
"""

import errno
import os
from collections import deque
from typing import Final

import trio
from trio.lowlevel import ParkingLot, checkpoint

from commitfs.errors import ReadOnlyError
from commitfs.store.beside import beside
from commitfs.store.committer import GroupCommitter
from commitfs.store.file import STAGE_ALIGN, is_no_room, rounded_up
from commitfs.store.log import Log
from commitfs.store.store import Store
from commitfs.store.tail import STEP
from commitfs.types import Buffer

PUT_LIMIT: Final = 1 << 20
PIECE_LEAST: Final = 1 << 20
PIECE_MOST: Final = 64 << 20
OUTSTANDING: Final = 2
_REMAINDERS: Final = 8


class _Piece:
    __slots__ = ("at", "end")

    def __init__(self, at: int, end: int) -> None:
        self.at = at
        self.end = end


class Stager:
    """Of one writable store, used in one trio loop."""

    def __init__(self, store: Store, committer: GroupCommitter) -> None:
        if store.log is None:
            raise ReadOnlyError(f"{store.path} is not open for writing")
        self._log: Log = store.log
        self._file = store.file
        self._committer = committer
        self._pieces: list[_Piece] = []
        self._piece_size = PIECE_LEAST
        self._reserving = trio.Lock()
        self._jobs: deque[tuple[int, bytes]] = deque()
        self._pumping = False
        self._changed = ParkingLot()
        self._no_room: OSError | None = None
        self._put = self._written = self._synced = 0
        """Counts of puts."""
        self._syncing = trio.Lock()

    @property
    def puts(self) -> int:
        """How many puts there were."""
        return self._put

    @property
    def synced(self) -> int:
        """How many of the first of them are durable."""
        return self._synced

    async def put(self, data: Buffer) -> int:
        """Give `data`, at most PUT_LIMIT bytes, a place; its offset in the log, a multiple of 4096.

        Readable at once.  Waits while OUTSTANDING puts are not written yet.  OSError ENOSPC and the
        like, ReadOnlyError: nothing was accepted.
        """
        if len(data) > PUT_LIMIT:
            raise ValueError("more than fits into one put")
        await checkpoint()
        self._no_room = None
        while len(self._jobs) >= OUTSTANDING:
            await self._some_written()
        size = rounded_up(len(data), STAGE_ALIGN)
        while (offset := self._take(size)) is None:
            async with self._reserving:
                if not any(piece.end - piece.at >= size for piece in self._pieces):
                    await self._reserve(size)
        kept = data if type(data) is bytes else bytes(data)
        self._log.pending.add(offset, kept)
        self._jobs.append((offset, kept))
        self._put += 1
        self._pump_on()
        return offset

    def _take(self, size: int) -> int | None:
        self._log.check_writable()
        for piece in self._pieces:
            if piece.end - piece.at >= size:
                offset = piece.at
                piece.at += size
                return offset
        return None

    async def _reserve(self, size: int) -> None:
        log = self._log
        wanted = max(self._piece_size, size)
        while True:
            end = log.stage_end(wanted + STAGE_ALIGN)
            try:
                await beside(log.tail.lay_behind, end, log.reserved + STEP)
            except OSError as error:
                if not is_no_room(error):
                    self._committer.latch(error)
                elif wanted > size:
                    wanted = size
                    continue
                raise
            log.check_writable()
            entry = log.place_stage(end)
            if entry is not None:
                break
        self._piece_size = min(wanted * 2, PIECE_MOST)
        await self._committer.acknowledge(entry.ticket)
        self._pieces.append(_Piece(rounded_up(entry.record.bytes_offset, STAGE_ALIGN), end))
        if len(self._pieces) > _REMAINDERS:
            self._give_back(self._pieces.pop(0))

    async def _some_written(self) -> None:
        """Wait until a put was written; OSError if there is no room, ReadOnlyError."""
        self._log.check_writable()
        if self._no_room is not None:
            raise self._no_room
        if self._pump_on():
            await self._changed.park()
        else:
            await self._pump()

    def _pump_on(self) -> bool:
        """See to it that what waits is being written in the background; False if there is none."""
        if self._pumping or not self._jobs:
            return True
        return self._committer.start_soon(self._pump)

    async def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._jobs and self._log.latched is None:
                offset, data = self._jobs[0]
                await beside(
                    self._file.write_stage, data.ljust(rounded_up(len(data), STAGE_ALIGN), b"\0"), offset
                )
                self._jobs.popleft()
                self._log.pending.remove(offset)
                self._written += 1
                self._changed.unpark_all()
        except OSError as error:
            if is_no_room(error):
                self._no_room = error  # the data stays; who waits is told, and whoever comes tries again
            else:
                self._committer.latch(error)
        except MemoryError:
            self._no_room = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        finally:
            self._pumping = False
            self._changed.unpark_all()

    async def sync(self) -> None:
        """Return when all that was put so far is durable.  OSError, ReadOnlyError."""
        await checkpoint()
        mark = self._put
        self._no_room = None
        while self._written < mark:
            await self._some_written()
        async with self._syncing:
            if self._synced >= mark:
                return
            self._log.check_writable()
            written = self._written
            try:
                await beside(self._file.sync_stage)
            except OSError as error:
                self._committer.latch(error)
                raise
            self._synced = written

    def close(self) -> None:
        """Give back what no put took."""
        while self._pieces:
            self._give_back(self._pieces.pop())

    def _give_back(self, piece: _Piece) -> None:
        if piece.end > piece.at and self._log.latched is None:
            self._file.punch(piece.at, piece.end - piece.at)


__all__ = ["OUTSTANDING", "PIECE_MOST", "PUT_LIMIT", "Stager"]
