"""Group commit: closes that arrive while a sync is under way share the next one.

One of those who wait leads: it takes all that is queued as one group, writes it, and wakes the others;
whoever was not in it, or its next in line, leads the next.  Whether the leader writes in the loop's
thread or beside it depends on the device: inline is quicker while a sync costs less than the way to
another thread and back, but a slow device must not stall readers.

With `_lock`-free code, atomicity rests on where it awaits: C1, between `take` and the end of its group
nobody else takes (`_leading`); C2, a group taken is brought to its end even when its leader is cancelled.
"""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from trio.lowlevel import ParkingLot, checkpoint, wait_readable

from commitfs.errors import ReadOnlyError
from commitfs.store.file import OverlappedFile
from commitfs.store.log import Group, Log, Ticket
from commitfs.store.store import Store

INLINE_SECONDS: Final = 0.0005
"""A device on which a group takes less, on average, is written to in the loop's thread."""
INLINE_BYTES: Final = 256 << 10
_WEIGHT: Final = 0.125


class GroupCommitter:
    """Of one writable store, used in one trio loop.

    `inline`: True writes in the loop's thread, False beside it, None decides by the device's speed.
    Without `run` in the background, zeros and slots are written in the callers' time.
    """

    def __init__(self, store: Store, *, inline: bool | None = None) -> None:
        if store.log is None:
            raise ReadOnlyError(f"{store.path} is not open for writing")
        self._log: Log = store.log
        self._file = store.file
        self._inline = inline
        self._seconds = math.inf
        """Running mean of what a small group takes."""
        self._leading = False
        self._waiting = ParkingLot()
        self._chores = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Lay zeros ahead of need and write slots, off every caller's time; until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await self._chores.wait()
                    self._chores = trio.Event()
                    try:
                        await trio.to_thread.run_sync(self._log.chores)
                    except OSError as error:
                        self.latch(error)
            finally:
                self._nursery = None

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Have `work` done in the background; False if there is none."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(work)
        return True

    def latch(self, error: OSError) -> None:
        """A sync failed somewhere: nothing is written any more."""
        self._log.latch(error)
        self._waiting.unpark_all()

    async def acknowledge(self, ticket: Ticket) -> None:
        """Return when the commit is durable.

        OSError ENOSPC and the like: it is not yet, stays queued, and this may be called again.  Any other
        OSError, ReadOnlyError: it never will be.
        """
        if ticket.error is not None and self._log.latched is None:
            ticket.error = None  # of an earlier attempt
        while not ticket.done:
            if ticket.error is not None:
                raise ticket.error
            self._log.check_writable()
            if self._leading:
                await self._waiting.park()
            else:
                await self._lead()

    async def drain(self) -> None:
        """Return when all that is queued by now is durable; raises as acknowledge does."""
        await checkpoint()
        log = self._log
        if log.queue:
            await self.acknowledge(log.queue[-1].ticket)
        elif log.in_flight is not None:
            await self.acknowledge(log.in_flight.entries[-1].ticket)

    async def _lead(self) -> None:
        """Write one group."""
        self._leading = True
        try:
            await checkpoint()  # let others who are about to commit join
            group = self._log.take()
            if group is not None:
                await self._write(group)
                if self._log.chores_due():
                    if self._nursery is not None:
                        self._chores.set()
                    else:
                        self._log.do_chores()
        finally:
            self._leading = False
            self._waiting.unpark_all()

    async def _write(self, group: Group) -> None:
        started = time.perf_counter()
        if self._write_inline(group):
            self._log.write(group)
        else:
            with trio.CancelScope(shield=True):  # C2
                await self._write_beside(group)
        if group.size < INLINE_BYTES:
            took = time.perf_counter() - started
            if math.isinf(self._seconds):
                self._seconds = took
            self._seconds += (took - self._seconds) * _WEIGHT

    def _write_inline(self, group: Group) -> bool:
        if self._inline is not None:
            return self._inline
        return self._seconds < INLINE_SECONDS and group.size < INLINE_BYTES

    async def _write_beside(self, group: Group) -> None:
        log, file = self._log, self._file
        try:
            if isinstance(file, OverlappedFile):
                file.begin_durable(group.buffers, group.offset)
                await wait_readable(file.durable_fileno())
                file.end_durable()
            else:
                await trio.to_thread.run_sync(file.write_durable, group.buffers, group.offset)
        except OSError as error:
            log.failed(group, error)
        else:
            log.written(group)


__all__ = ["GroupCommitter"]
