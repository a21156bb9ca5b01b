"""The one place where an exception becomes an errno (invariant F1).

F1: a handler ends with a value, with FUSEError or with trio.Cancelled; pyfuse3 ends the mount otherwise.
"""

import errno
import functools
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

import pyfuse3

from commitfs.errors import NO_ROOM, CorruptError, FsError, NotFoundError, ReadOnlyError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def errno_of(exc: Exception, where: str) -> int:
    """The errno a caller sees for `exc`; logs what a user has to hear of."""
    if isinstance(exc, FsError):
        return exc.errno or errno.EIO
    if isinstance(exc, CorruptError):
        log.error("%s: %s", where, exc)
        return errno.EIO
    if isinstance(exc, ReadOnlyError):
        return errno.EROFS
    if isinstance(exc, NotFoundError):
        return errno.ENOENT
    if isinstance(exc, OSError):
        if exc.errno not in NO_ROOM and exc.errno != errno.ENOMEM:
            # FsErrors are answers; other OSErrors come from the file below and mean trouble there, unless
            # it is only full, or memory is: callers hear of that, the log need not.
            log.error("%s: %s", where, exc)
        # An interrupted sync is not made again, as programs would make a call that is EINTR.
        return errno.EIO if exc.errno == errno.EINTR else exc.errno or errno.EIO
    if isinstance(exc, MemoryError):
        log.error("%s: out of memory", where)
        return errno.ENOMEM
    log.error("%s failed in a way nobody foresaw", where, exc_info=exc)
    return errno.EIO


def guard(handler: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Wrap a handler so that F1 holds.  Cancellation is no Exception and passes.

    Counts in its object's `open_requests` those that have begun and not ended.
    """
    where = handler.__name__

    @functools.wraps(handler)
    async def guarded(*args: Any) -> T:
        operations = args[0]
        operations.open_requests += 1
        try:
            return await handler(*args)  # type: ignore[call-arg]  # pyfuse3 passes by position only
        except pyfuse3.FUSEError:
            raise
        except Exception as exc:
            raise pyfuse3.FUSEError(errno_of(exc, where)) from None
        finally:
            operations.open_requests -= 1

    return cast(Callable[P, Coroutine[Any, Any, T]], guarded)


def unanswerable(record: logging.LogRecord) -> bool:
    """Filter for pyfuse3's logger: False for a reply that no process waits for any more.

    The kernel refuses a reply with ENOENT when its request was interrupted, or when the connection is
    gone: a RELEASE may still be under way when the last file is closed and the mount unmounted.  pyfuse3
    takes that for an error.
    """
    return not (
        str(record.msg).endswith("fuse_reply_* failed with %s")
        and record.args == (os.strerror(errno.ENOENT),)
    )
