"""Signals that end a mount in good order."""

import logging
import signal
from collections.abc import Awaitable, Callable

import trio

log = logging.getLogger(__name__)

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def on_signal(
    stop: Callable[[], Awaitable[None]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Call `stop` at the first of the signals; later ones are noted only, as what they ask for is under way.

    Runs until cancelled, so that no signal meets its default action while the last commit is written.
    """
    with trio.open_signal_receiver(*ENDING) as received:
        task_status.started()
        stopping = False
        async for number in received:
            name = signal.Signals(number).name
            if stopping:
                log.info("%s: already ending", name)
                continue
            stopping = True
            log.info("%s: committing everything, then ending", name)
            await stop()
