"""Blocking work beside the event loop, as long as a thread for it can be had."""

from collections.abc import Callable
from typing import TypeVar

import trio
from trio.lowlevel import checkpoint

T = TypeVar("T")


async def beside(work: Callable[..., T], *args: object) -> T:
    """What ``work(*args)`` returns or raises, done in a worker thread.

    Where the system gives no thread (a limit of processes, no memory for a stack) it is done here and
    everybody waits for it: slow beats an error that would end the mount.
    """
    begun = False

    def in_thread() -> T:
        nonlocal begun
        begun = True
        return work(*args)

    try:
        return await trio.to_thread.run_sync(in_thread)
    except (RuntimeError, MemoryError):  # "can't start new thread"
        if begun:
            raise
    await checkpoint()
    return work(*args)


__all__ = ["beside"]
