"""A task of pyfuse3 that gets no memory for a request's buffer waits for some.

Each task of pyfuse3 has libfuse make it a buffer before the first request it reads, and an error there
would end the mount.  Nothing has been read by then, so trying again loses nothing.  The tasks are started
by their function's name in pyfuse3's module, where `install` puts another.
"""

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pyfuse3
import trio

log = logging.getLogger(__name__)

_TASK = "_session_loop"
RETRY = 0.05
"""Seconds between tries."""

Task = Callable[..., Awaitable[None]]


def patient(task: Task) -> Task:
    """The task, begun again as long as it ends for want of memory."""

    async def begin(*args: Any) -> None:
        told = False
        while True:
            try:
                await task(*args)
                return
            except OSError as exc:
                if exc.errno != errno.ENOMEM:
                    raise
                if not told:
                    log.error("out of memory: requests have to wait")
                told = True
            await trio.sleep(RETRY)

    return begin


def install() -> Callable[[], None]:
    """Have pyfuse3 start such tasks; returns what puts its own back."""
    task = getattr(pyfuse3, _TASK)
    setattr(pyfuse3, _TASK, patient(task))
    return lambda: setattr(pyfuse3, _TASK, task)
