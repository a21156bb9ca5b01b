"""Filesystem calls Python has no name for, and the outcome of a call as a word."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

Act = Callable[[], object]

NOREPLACE, EXCHANGE = 1, 2
_AT_CWD = -100
_LIBC = ctypes.CDLL(None, use_errno=True)


def renameat2(source: Path, target: Path, flags: int) -> None:
    """rename(2) with flags; raises OSError."""
    if _LIBC.renameat2(_AT_CWD, os.fsencode(source), _AT_CWD, os.fsencode(target), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def outcome(act: Act) -> str:
    """Name of the error `act` ends with, or ``ok``.  A descriptor it returns is closed."""
    try:
        result = act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    if type(result) is int and result > 2:
        os.close(result)
    return "ok"
