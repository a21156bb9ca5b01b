"""Put the rest of the program into the background, and tell the caller how its start went.

fork comes before anything that would not survive it: the event loop, the session with the kernel,
threads, and locks that belong to a process.  The parent waits at a pipe; the child writes one message
to it, when it serves or when it cannot.  A pipe closed without a message is a child that died.
"""

import json
import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from commitfs.errors import CommitfsError, one_line

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1

Ready = Callable[[str], None]
"""Called once, when the mount serves, with what the user should hear ("": nothing)."""


def in_background(work: Callable[[Ready], None], prepare: Callable[[], None]) -> str:
    """Run ``work(ready)`` in a child process with no ties to this session or terminal.

    Returns, when `work` has called `ready`, what it was called with.  Raises CommitfsError with the
    child's message and exit code if it ended before.  `prepare` runs in the child once its standard
    streams lead to /dev/null (logging is set up there).
    """
    if threading.active_count() != 1:
        raise RuntimeError("cannot fork a daemon out of a process with several threads")
    readable, writable = os.pipe()
    # An interrupt between fork and `try` would leave a child that nobody waits for.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    child = os.fork()
    if child == 0:
        os.close(readable)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        _child(work, prepare, writable)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        os.close(writable)
        message = _read_all(readable)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
    if not message:
        _, status = os.waitpid(child, 0)
        raise CommitfsError(f"the daemon ended before it served: {_ending(status)}")
    report = json.loads(message)
    if "error" in report:
        os.waitpid(child, 0)
        failure = CommitfsError(report["error"])
        failure.exit_code = report["exit_code"]
        raise failure
    return str(report["ready"])


def _read_all(fd: int) -> bytes:
    """Until the other end is closed.  An interrupt that comes just before a blocking read would wait for
    it to end; so look now and then."""
    with open(fd, "rb", buffering=0) as pipe:
        parts: list[bytes] = []
        while True:
            while not select.select([pipe], [], [], LOOK_SECONDS)[0]:
                pass
            part = pipe.read(65536)
            if not part:
                return b"".join(parts)
            parts.append(part)


def single(exc: BaseException) -> BaseException:
    """The one error inside groups that hold no other."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _child(work: Callable[[Ready], None], prepare: Callable[[], None], pipe: int) -> NoReturn:
    told = False

    def tell(report: dict[str, object]) -> None:
        nonlocal told
        told = True
        # A parent that is gone is no reason to end.
        with suppress(BrokenPipeError), open(pipe, "wb") as file:
            file.write(json.dumps(report).encode("ascii"))

    code = 1
    try:
        os.setsid()
        os.chdir("/")
        _detach_streams()
        prepare()
        work(lambda said: tell({"ready": said}))
        code = 0
    except BaseException as raised:
        exc = single(raised)
        code = exc.exit_code if isinstance(exc, CommitfsError) else 1
        if not told:
            tell({"error": one_line(exc), "exit_code": code})
        elif isinstance(exc, CommitfsError):
            log.critical("%s", exc)
    finally:
        logging.shutdown()
        # No way back into the caller's code, whose exit handlers belong to the parent.
        os._exit(code)


def _detach_streams() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    if null > 2:
        os.close(null)


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
