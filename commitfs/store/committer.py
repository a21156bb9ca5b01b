"""Group commit: closes that arrive while a sync is under way share the next one.

One of those who wait leads: it takes all that is queued as one group, writes it, and wakes the others;
of those who were not in it, the first leads the next.

Whether the leader writes in the loop's thread (inline) or beside it is found out by trying: inline saves
the way to another thread and back (131 against 177 us a commit on an idle machine), but on one whose
processors are busy the second thread gets a share of its own and wins, and a slow device must never stall
the loop, in which others read.

Atomicity rests on where this awaits: C1, between `take` and the end of its group nobody else takes
(`_leading`); C2, a group taken is brought to its end even when its leader is cancelled.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from trio.lowlevel import ParkingLot, checkpoint, wait_readable

from commitfs.errors import ReadOnlyError
from commitfs.store.beside import beside
from commitfs.store.file import OverlappedFile
from commitfs.store.log import Group, Log, Ticket
from commitfs.store.store import Store

INLINE_SECONDS: Final = 0.0005
"""Never inline on a device that takes longer."""
SMALL_BYTES: Final = 256 << 10
"""Groups above this say nothing about the device and are written beside."""
_TRY_EVERY: Final = 32


class Pace:
    """How long small groups take, inline and beside, and which it shall be next."""

    def __init__(self) -> None:
        self._mean = {True: 0.0, False: 0.0}
        self._count = 0

    def choose_inline(self) -> bool:
        other = self._mean[False]
        if not 0.0 < other < 2 * INLINE_SECONDS:
            return False  # not known yet, or slow: not even to try
        self._count += 1
        inline = self._mean[True] < min(other, INLINE_SECONDS)
        return inline ^ (self._count % _TRY_EVERY == 0)

    def typical(self) -> float:
        """Seconds the quicker way takes, as far as is known."""
        means = [mean for mean in self._mean.values() if mean]
        return min(means, default=0.0)

    def took(self, inline: bool, seconds: float) -> None:
        mean = self._mean[inline] or seconds
        # One stall must not outweigh all else.
        self._mean[inline] = mean + (min(seconds, 4 * mean) - mean) / 8


class GroupCommitter:
    """Of one writable store, used in one trio loop.

    `inline`: True writes in the loop's thread, False beside it, None finds out which is quicker.
    Without `run` in the background, zeros and slots are written in the callers' time.
    """

    def __init__(
        self, store: Store, *, inline: bool | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if store.log is None:
            raise ReadOnlyError(f"{store.path} is not open for writing")
        self._log: Log = store.log
        self._file = store.file
        self._inline = inline
        self._pace = Pace()
        self._clock = clock
        self._leading = False
        self._waiting = ParkingLot()
        self._chores = trio.Event()
        self._nursery: trio.Nursery | None = None
        self.others_come: Callable[[], int] | None = None
        """0 where nobody waits to be heard who may be about to commit; else a number that is another one as
        soon as somebody was.  None: that is not known, and everybody gets one turn."""

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
                        await beside(self._log.chores)
                    except OSError as error:
                        self.latch(error)
                    except MemoryError:
                        pass  # the next group finds them due again
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
                # A new one each time: one exception raised by many would keep all their frames.
                raise type(ticket.error)(*ticket.error.args) from None
            self._log.check_writable()
            if self._leading:
                await self._waiting.park()
            elif not await self._lead() and not ticket.done and ticket.error is None:
                self._log.check_writable()
                raise RuntimeError("a commit that waits is in no group")

    async def drain(self) -> None:
        """Return when all that is queued by now is durable; raises as acknowledge does."""
        await checkpoint()
        log = self._log
        if log.queue:
            await self.acknowledge(log.queue[-1].ticket)
        elif log.in_flight is not None:
            await self.acknowledge(log.in_flight.entries[-1].ticket)

    async def _lead(self) -> bool:
        """Write one group; False if there was none."""
        self._leading = True
        try:
            await self._gather()
            group = self._log.take()
            if group is None:
                return False
            await self._write(group)
            if self._log.chores_due():
                if self._nursery is not None:
                    self._chores.set()
                else:
                    self._log.do_chores()
            return True
        finally:
            self._leading = False
            self._waiting.unpark_all()

    async def _gather(self) -> None:
        """Let those join who are about to commit, for no longer than a write takes, and only as long as it
        helps: where all who could hear them are busy, they have to wait."""
        if self.others_come is None:
            await checkpoint()
            return
        until = 0.0
        heard = in_vain = 0
        while waiting := self.others_come():
            now = self._clock()
            until = until or now + self._pace.typical()
            in_vain = in_vain + 1 if waiting == heard else 0
            # Two turns: in the first it may be this task's turn before that of whoever was woken.
            if in_vain > 1 or (heard and now >= until):
                return
            heard = waiting
            await checkpoint()

    async def _write(self, group: Group) -> None:
        small = group.size < SMALL_BYTES
        inline = self._inline
        if inline is None:
            inline = small and self._pace.choose_inline()
        started = self._clock()
        if inline:
            self._log.write(group)
        else:
            with trio.CancelScope(shield=True):  # C2
                await self._write_beside(group)
        if small:
            self._pace.took(inline, self._clock() - started)

    async def _write_beside(self, group: Group) -> None:
        log, file = self._log, self._file
        try:
            if isinstance(file, OverlappedFile):
                try:
                    file.begin_durable(group.buffers, group.offset)
                except OSError:  # no thread to be had
                    file.write_durable(group.buffers, group.offset)
                else:
                    await wait_readable(file.durable_fileno())
                    file.end_durable()
            else:
                await beside(file.write_durable, group.buffers, group.offset)
        except OSError as error:
            log.failed(group, error)
        else:
            log.written(group)


__all__ = ["GroupCommitter", "Pace"]
