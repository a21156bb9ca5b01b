"""Start a mount in the foreground or the background, with its messages going where they should."""

import os
from collections.abc import Callable
from contextlib import nullcontext

from commitfs.daemon.daemonize import in_background
from commitfs.daemon.logs import log_to_file, log_to_stderr, log_to_syslog, opened_log
from commitfs.daemon.mount import Plan, run


def launch(plan: Plan, *, foreground: bool, log_file: bytes | None, say: Callable[[str], None]) -> None:
    """In the background: returns when the mount serves.  In the foreground: when it has ended.

    `say` hears what the user should know.  Raises CommitfsError or OSError when nothing is mounted,
    and in the foreground also the error that ended the mount.
    """
    with nullcontext() if log_file is None else opened_log(log_file) as log_fd:
        _launch(plan, foreground, log_fd, say)


def _launch(plan: Plan, foreground: bool, log_fd: int | None, say: Callable[[str], None]) -> None:
    def prepare() -> None:
        if log_fd is not None:
            log_to_file(log_fd)
        elif foreground:
            log_to_stderr()
        else:
            log_to_syslog()

    if foreground:
        # Descriptor 2 is the log's meanwhile; how it ended is for whoever waits here.
        stderr = os.dup(2)
        try:
            prepare()
            run(plan, say)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    else:
        say(in_background(lambda ready: run(plan, ready), prepare))
