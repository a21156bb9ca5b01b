"""Where a daemon's messages go: syslog, a file, or standard error in the foreground."""

import faulthandler
import logging
import os
import signal
import sys
import syslog
from collections.abc import Iterator
from contextlib import contextmanager

_PLAIN = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


class SyslogHandler(logging.Handler):
    """syslog(3).  Unlike the standard library's handler it does not mind that nobody listens."""

    def __init__(self, ident: str) -> None:
        super().__init__()
        syslog.openlog(ident, syslog.LOG_PID, syslog.LOG_DAEMON)
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for line in self.format(record).splitlines():
                # A lone surrogate or a NUL cannot be passed on.
                clean = line.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
                syslog.syslog(_priority(record.levelno), clean)
        except Exception:
            self.handleError(record)


def _priority(level: int) -> int:
    if level >= logging.CRITICAL:
        return syslog.LOG_CRIT
    if level >= logging.ERROR:
        return syslog.LOG_ERR
    if level >= logging.WARNING:
        return syslog.LOG_WARNING
    return syslog.LOG_INFO


def log_to_stderr() -> None:
    _install(logging.StreamHandler(sys.stderr), sys.stderr.fileno())


def log_to_syslog() -> None:
    """Stack dumps on SIGUSR1 have nowhere to go then; they need a file or the foreground."""
    _install(SyslogHandler("commitfs"), None)


@contextmanager
def opened_log(path: bytes) -> Iterator[int]:
    """Descriptor of the log file, opened early so that a bad path is an error of the command.

    A file made here in which nothing was written is removed again when the body fails.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        fd, made = os.open(path, flags | os.O_EXCL, 0o600), True
    except FileExistsError:
        fd, made = os.open(path, flags, 0o600), False
    try:
        yield fd
    except BaseException:
        if made and os.fstat(fd).st_size == 0:
            os.unlink(path)
        raise


def log_to_file(fd: int) -> None:
    """Also what C libraries print on descriptor 2 goes there."""
    os.dup2(fd, 2)
    stream = open(fd, "a", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    _install(logging.StreamHandler(stream), fd)


def _install(handler: logging.Handler, dump_to: int | None) -> None:
    if handler.formatter is None:
        handler.setFormatter(_PLAIN)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    if dump_to is not None:
        faulthandler.enable(dump_to)
        # Works even when the event loop is stuck, which is when it is needed.
        faulthandler.register(signal.SIGUSR1, dump_to, all_threads=True)
    else:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
