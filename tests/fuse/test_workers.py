"""A task that gets no memory for its buffer is begun again; any other end is its end."""

import errno
import logging

import pyfuse3
import pytest
import trio

from commitfs.fuse import workers


class Task:
    """Ends with each of `ends` in turn."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.given: list[tuple[object, ...]] = []

    async def __call__(self, *args: object) -> None:
        self.given.append(args)
        await trio.lowlevel.checkpoint()
        end = self.ends.pop(0)
        if end is not None:
            raise end


def no_memory() -> OSError:
    return OSError(errno.ENOMEM, "fuse_session_receive_buf failed with Cannot allocate memory")


@pytest.mark.expect_logs("out of memory")
async def test_memory_is_waited_for(autojump_clock: object, caplog: pytest.LogCaptureFixture) -> None:
    task = Task(no_memory(), no_memory(), no_memory(), None)
    await workers.patient(task)("nursery", 1, 99)
    assert task.given == [("nursery", 1, 99)] * 4
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "told once"


@pytest.mark.parametrize("end", [OSError(errno.EIO, "device"), ValueError("a bug")])
async def test_other_errors_pass(end: Exception) -> None:
    task = Task(end)
    with pytest.raises(type(end)):
        await workers.patient(task)()
    assert len(task.given) == 1


def test_pyfuse3_has_such_tasks() -> None:
    """It looks them up where they are replaced, or this module does nothing."""
    before = getattr(pyfuse3, "_session_loop")  # noqa: B009  not in its stub
    put_back = workers.install()
    try:
        assert getattr(pyfuse3, "_session_loop") is not before  # noqa: B009
    finally:
        put_back()
    assert getattr(pyfuse3, "_session_loop") is before  # noqa: B009
