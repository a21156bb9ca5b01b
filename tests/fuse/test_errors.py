"""F1: a handler ends with a value, with FUSEError or with Cancelled, whatever happens below it."""

import errno
import inspect
import logging
import os

import pyfuse3
import pytest
import trio

from commitfs.errors import (
    CommitfsError,
    CorruptError,
    FormatError,
    FsError,
    LockedError,
    NotFoundError,
    ReadOnlyError,
    StoreError,
    UsageError,
)
from commitfs.fuse.errors import guard, unanswerable
from commitfs.fuse.operations import Operations
from tests.fuse.fake_vfs import operations


class Handlers:
    """Something with guarded methods."""

    open_requests = 0

    @guard
    async def failing(self, exc: BaseException) -> None:
        assert self.open_requests == 1
        raise exc

    @guard
    async def waiting(self) -> None:
        await trio.sleep_forever()

    @guard
    async def answering(self, first: int, second: int) -> tuple[int, int]:
        return first, second


QUIET = [
    (FsError(errno.ENOTEMPTY), errno.ENOTEMPTY),
    (FsError(0), errno.EIO),
    (ReadOnlyError("latched"), errno.EROFS),
    (NotFoundError("no such commit"), errno.ENOENT),
    (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
    (OSError(errno.EDQUOT, "quota"), errno.EDQUOT),
    (OSError(errno.EFBIG, "limit"), errno.EFBIG),
    (OSError(errno.ENOMEM, "memory"), errno.ENOMEM),
    (pyfuse3.FUSEError(errno.ENODATA), errno.ENODATA),
]
LOGGED = [
    (CorruptError("tree node", 8192), errno.EIO),
    (OSError(errno.EIO, "device"), errno.EIO),
    (InterruptedError(errno.EINTR, "a sync"), errno.EIO),
    (OSError("without a number"), errno.EIO),
    (PermissionError(errno.EPERM, "of the store"), errno.EPERM),
    (UsageError("nobody meant this"), errno.EIO),
    (StoreError("nobody meant this"), errno.EIO),
    (FormatError("nobody meant this"), errno.EIO),
    (LockedError("nobody meant this", 1), errno.EIO),
    (CommitfsError("nobody meant this"), errno.EIO),
    (ValueError("a bug"), errno.EIO),
    (AssertionError(), errno.EIO),
    (KeyError("a bug"), errno.EIO),
    (RecursionError(), errno.EIO),
    (MemoryError(), errno.ENOMEM),
    (ExceptionGroup("several", [ValueError(), OSError(errno.ENOSPC, "full")]), errno.EIO),
]


@pytest.mark.parametrize(("raised", "wanted"), QUIET, ids=lambda value: repr(value)[:40])
async def test_answers_are_not_logged(
    raised: Exception, wanted: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await Handlers().failing(raised)
    assert caught.value.errno == wanted
    assert not caplog.records


@pytest.mark.parametrize(("raised", "wanted"), LOGGED, ids=lambda value: repr(value)[:40])
async def test_trouble_is_logged(raised: Exception, wanted: int, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await Handlers().failing(raised)
    assert caught.value.errno == wanted
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "failing" in record.getMessage()
    foreseen = isinstance(raised, CorruptError | OSError | MemoryError)
    assert (record.exc_info is None) == foreseen, "a traceback for what nobody foresaw, a line for the rest"
    caplog.clear()


async def test_cancellation_passes() -> None:
    handlers = Handlers()
    with trio.move_on_after(0) as scope:
        await handlers.waiting()
    assert scope.cancelled_caught
    assert handlers.open_requests == 0


@pytest.mark.parametrize("passing", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
async def test_what_ends_the_program_passes(passing: BaseException) -> None:
    with pytest.raises(type(passing)):
        await Handlers().failing(passing)


async def test_values_pass() -> None:
    assert await Handlers().answering(1, 2) == (1, 2)


async def test_requests_are_counted_while_they_last(nursery: trio.Nursery) -> None:
    handlers = Handlers()
    for count in (1, 2, 3):
        nursery.start_soon(handlers.waiting)
        await trio.testing.wait_all_tasks_blocked()
        assert handlers.open_requests == count
    await handlers.answering(1, 2)
    assert handlers.open_requests == 3
    nursery.cancel_scope.cancel()


def handlers() -> list[str]:
    """Every request pyfuse3 knows, by the names of its own class."""
    named = inspect.getmembers(pyfuse3.Operations, inspect.iscoroutinefunction)
    return sorted(name for name, _ in named if name != "forget")


@pytest.mark.parametrize("name", handlers())
def test_every_handler_is_guarded_or_left_to_the_kernel(name: str) -> None:
    ours = vars(Operations).get(name)
    if name == "poll":
        assert ours is None, "left out: the kernel then does it itself"
    else:
        assert ours is not None
        assert ours.__wrapped__ is not None


def test_forget_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ops, fake = operations(forget=ValueError("a bug"))
    assert ops.forget([(5, 2)]) is None  # type: ignore[func-returns-value]
    assert fake.calls == [("forget", [(5, 2)])]
    assert "forget" in caplog.text
    caplog.clear()


@pytest.mark.parametrize(
    ("message", "number", "kept"),
    [
        ("fuse_release(): fuse_reply_* failed with %s", errno.ENOENT, False),
        ("fuse_lookup(): fuse_reply_* failed with %s", errno.ENOENT, False),
        ("fuse_release(): fuse_reply_* failed with %s", errno.EINVAL, True),
        ("something else failed with %s", errno.ENOENT, True),
    ],
)
def test_replies_nobody_waits_for_are_no_news(message: str, number: int, kept: bool) -> None:
    record = logging.LogRecord("pyfuse3", logging.ERROR, "", 0, message, (os.strerror(number),), None)
    assert unanswerable(record) is kept
