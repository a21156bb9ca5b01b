"""How the session waits for the kernel's next request.

pyfuse3 takes a trio.Lock and then waits in trio's poll, before every request: turns of the event loop and
system calls, and each time the daemon goes to sleep and has to be woken.  A save is six requests, one
right behind the other.  Here the lock costs nothing while nobody needs it, and the wait stays awake for a
moment before it sleeps.  With empty handlers create+write+close took 59 us in place of 110 on one
processor, and less than half where client and daemon run on two that doze off in between.

pyfuse3 looks up all it uses of trio in its own module, so that pyfuse3.asyncio can put something else
there; `install` does the same.

Rules that keep others alive:
  F3  Awake without a request only while no handler waits for anything (`idle`): else whatever it waits for
      comes first.
  F4  Not longer than TURN_NS without a turn of the event loop, however fast requests come.  While it is awake
      a turn costs nobody anything, and is taken after IDLE_TURN_NS already.
  F5  Each look gives the processor away, should somebody be waiting for it.
"""

import os
import select
import time
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any

import pyfuse3
import trio

AWAKE_NS = 20_000
"""A client's next request follows its last answer within this time, or is none of the same save."""
TURN_NS = 500_000
"""Longest time between two turns of the event loop while requests come without a pause."""
IDLE_TURN_NS = 300_000
"""The same where there is a pause."""


class ReadLock:
    """Held by the one task that waits for the next request.

    The task that has read a request leaves, handles it and is back before anybody else has run, unless
    its handler has to wait for something.  So the lock is not handed on when it is left: the next task is
    woken, and gets it if it is still free when its turn comes.  pyfuse3 always has a second task ready;
    with a fair lock the two would take turns, at one turn of the event loop for each request.
    """

    def __init__(self) -> None:
        self._taken = False
        self._woken = False
        """Somebody was woken and has not run yet: no need for a second one."""
        self._lot = trio.lowlevel.ParkingLot()

    def __aenter__(self) -> Awaitable[None]:
        # No coroutine where there is nothing to wait for, as is the rule: it is done for every request.
        if self._taken:
            return self._wait()
        self._taken = True
        return _DONE

    async def _wait(self) -> None:
        while self._taken:
            await self._lot.park()
            self._woken = False
        self._taken = True

    def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        self._taken = False
        if not self._woken and self._lot.unpark():
            self._woken = True
        return _DONE


class _Done:
    """What is awaited without waiting."""

    __slots__ = ()

    def __await__(self) -> Iterator[None]:
        return iter(())


_DONE: Awaitable[None] = _Done()  # type: ignore[assignment]  # an iterator will do where there is nothing to send


class Pump:
    """Stands in for ``trio.lowlevel`` in pyfuse3; all but waiting and the end of it is trio's own."""

    def __init__(self, idle: Callable[[], bool], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._idle = idle
        self._clock = clock
        self._looks: dict[int, Callable[[int], list[tuple[int, int]]]] = {}
        self._turned = clock()
        self._fd = -1
        self._read = 0
        """Requests that were there, each read by whoever waited for it."""
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(trio.lowlevel, name)

    async def wait_readable(self, fd: int) -> None:
        clock = self._clock
        self._fd = fd
        look = self._looks.get(fd) or self._look(fd)
        now = clock()
        until = 0
        while True:
            if look(0):
                if now - self._turned < TURN_NS:
                    self._read += 1
                    return
            elif not self._idle() or 0 < until <= now:
                break
            if now - self._turned >= IDLE_TURN_NS:
                await trio.lowlevel.checkpoint()
                if self._closing:
                    raise trio.ClosedResourceError("the session has ended")
                self._turned = now = clock()
                continue
            until = until or now + AWAKE_NS
            os.sched_yield()
            now = clock()
        await trio.lowlevel.wait_readable(fd)
        self._turned = clock()
        self._read += 1

    def notify_closing(self, fd: int) -> None:
        """What pyfuse3 ends a session with.  Who is in the midst of a turn of the loop is not waiting, so
        trio cannot wake him; he would go to sleep then, and the daemon with him."""
        self._closing = True
        trio.lowlevel.notify_closing(fd)

    def waiting(self) -> int:
        """0 unless a request has come that nobody has read; then another number after each that was."""
        look = self._looks.get(self._fd)
        return 1 + self._read if look is not None and look(0) else 0

    def _look(self, fd: int) -> Callable[[int], list[tuple[int, int]]]:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return self._looks.setdefault(fd, poll.poll)


class _Trio:
    """Stands in for trio in pyfuse3."""

    Lock = ReadLock

    def __init__(self, pump: Pump) -> None:
        self.lowlevel = pump

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)


def install(pump: Pump) -> Callable[[], None]:
    """Have pyfuse3 wait this way; returns what puts trio back."""
    setattr(pyfuse3, "trio", _Trio(pump))  # noqa: B010  not in its stub
    return lambda: setattr(pyfuse3, "trio", trio)
