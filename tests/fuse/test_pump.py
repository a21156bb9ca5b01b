"""Waiting for requests: awake for a moment, never at the cost of others (F3 to F5)."""

import os
from collections.abc import Iterator

import pyfuse3
import pytest
import trio
import trio.testing

from commitfs.fuse.pump import AWAKE_NS, IDLE_TURN_NS, TURN_NS, Pump, ReadLock, install


class Clock:
    """Goes on by `step` ns at each look."""

    def __init__(self, step: int) -> None:
        self.now = 0
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    readable, writable = os.pipe()
    yield readable, writable
    os.close(readable)
    os.close(writable)


def turns(pump: Pump, fd: int) -> int:
    """0 when the wait ends without a turn of the event loop, 1 when it needs one."""
    coroutine = pump.wait_readable(fd)
    try:
        coroutine.send(None)
    except StopIteration:
        return 0
    except RuntimeError:
        # Outside of trio.run its own wait cannot be.
        return 1
    coroutine.close()
    return 1


def test_a_request_that_is_there_is_taken_at_once(pipe: tuple[int, int]) -> None:
    pump = Pump(lambda: True, Clock(1))
    os.write(pipe[1], b"x")
    assert [turns(pump, pipe[0]) for _ in range(3)] == [0, 0, 0]


def test_a_request_that_comes_while_awake(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: each look in vain gives the processor away."""
    yields = 0

    def sched_yield() -> None:
        nonlocal yields
        yields += 1
        if yields == 5:
            os.write(pipe[1], b"x")

    monkeypatch.setattr(os, "sched_yield", sched_yield)
    assert turns(Pump(lambda: True, Clock(1)), pipe[0]) == 0
    assert yields == 5


def test_it_sleeps_when_none_comes(pipe: tuple[int, int]) -> None:
    clock = Clock(1000)
    assert turns(Pump(lambda: True, clock), pipe[0]) == 1
    assert AWAKE_NS <= clock.now < 2 * AWAKE_NS


def test_f3_handlers_that_wait_come_first(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is there is taken; none is waited for awake."""
    monkeypatch.setattr(os, "sched_yield", lambda: pytest.fail("it waits awake"))
    pump = Pump(lambda: False, Clock(1))
    assert turns(pump, pipe[0]) == 1
    os.write(pipe[1], b"x")
    assert turns(pump, pipe[0]) == 0


def test_tells_of_a_request_nobody_has_read(pipe: tuple[int, int]) -> None:
    pump = Pump(lambda: True, Clock(1000))
    assert not pump.waiting(), "no descriptor is known yet"
    turns(pump, pipe[0])
    assert not pump.waiting()
    os.write(pipe[1], b"x")
    assert pump.waiting()


async def test_f4_a_turn_is_taken_while_awake(pipe: tuple[int, int], nursery: trio.Nursery) -> None:
    """Others run in the pauses between requests, long before they would have to."""
    clock = Clock(1)
    pump = Pump(lambda: True, clock)
    ran = False

    async def other() -> None:
        nonlocal ran
        ran = True
        os.write(pipe[1], b"x")

    nursery.start_soon(other)
    clock.now += IDLE_TURN_NS
    await pump.wait_readable(pipe[0])
    assert ran
    assert clock.now < TURN_NS


def test_f4_a_turn_of_the_loop_in_time(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x")
    clock = Clock(1)
    pump = Pump(lambda: True, clock)
    assert turns(pump, pipe[0]) == 0
    clock.now += TURN_NS
    assert turns(pump, pipe[0]) == 1


async def test_others_run_however_fast_requests_come(pipe: tuple[int, int], nursery: trio.Nursery) -> None:
    os.write(pipe[1], b"x")
    pump = Pump(lambda: True, Clock(TURN_NS // 10))
    ran = 0

    async def other() -> None:
        nonlocal ran
        while True:
            ran += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(other)
    await trio.lowlevel.checkpoint()
    before = ran
    for _ in range(200):
        await pump.wait_readable(pipe[0])
    assert ran - before >= 10
    nursery.cancel_scope.cancel()


async def test_waiting_asleep(pipe: tuple[int, int], nursery: trio.Nursery) -> None:
    pump = Pump(lambda: True)
    done = trio.Event()

    async def wait() -> None:
        await pump.wait_readable(pipe[0])
        done.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert not done.is_set()
    os.write(pipe[1], b"x")
    await done.wait()


async def test_the_end_of_the_session_wakes_it(pipe: tuple[int, int], nursery: trio.Nursery) -> None:
    pump = Pump(lambda: True)
    closed = trio.Event()

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await pump.wait_readable(pipe[0])
        closed.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    pump.notify_closing(pipe[0])
    await closed.wait()


async def test_the_end_of_the_session_amid_a_turn_of_the_loop(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the descriptor at that moment: a signal that comes then must not be lost."""
    clock = Clock(1)
    pump = Pump(lambda: True, clock)
    turn = trio.lowlevel.checkpoint

    async def turn_with_the_end_in_it() -> None:
        pump.notify_closing(pipe[0])
        await turn()

    monkeypatch.setattr(trio.lowlevel, "checkpoint", turn_with_the_end_in_it)
    clock.now += IDLE_TURN_NS
    with trio.fail_after(5), pytest.raises(trio.ClosedResourceError):
        await pump.wait_readable(pipe[0])


async def test_one_at_a_time_and_everybody_in_the_end(nursery: trio.Nursery) -> None:
    lock = ReadLock()
    inside: list[int] = []
    done: list[int] = []

    async def hold(number: int) -> None:
        async with lock:
            inside.append(number)
            await trio.lowlevel.checkpoint()
            assert inside == [number]
            inside.remove(number)
        done.append(number)

    async with lock:
        for number in range(5):
            nursery.start_soon(hold, number)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(done) == [0, 1, 2, 3, 4]


async def test_who_is_back_at_once_has_it_again(nursery: trio.Nursery) -> None:
    """A handler that waits for nothing costs no turn of the loop, and nobody is woken twice for it."""
    lock = ReadLock()
    got = trio.Event()

    async def other() -> None:
        async with lock:
            got.set()

    async with lock:
        nursery.start_soon(other)
        await trio.testing.wait_all_tasks_blocked()
    for _ in range(100):
        async with lock:
            pass
    assert not got.is_set()
    await got.wait()


async def test_a_handler_that_waits_lets_the_next_one_in(nursery: trio.Nursery) -> None:
    lock = ReadLock()
    second_is_in = trio.Event()

    async def first() -> None:
        async with lock:
            pass
        await second_is_in.wait()

    async def second() -> None:
        async with lock:
            second_is_in.set()

    async with lock:
        nursery.start_soon(first)
        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
    await second_is_in.wait()


async def test_someone_woken_and_cancelled_at_once_loses_nothing(nursery: trio.Nursery) -> None:
    lock = ReadLock()
    first, second = trio.CancelScope(), trio.CancelScope()
    got: list[trio.CancelScope] = []

    async def waiting(scope: trio.CancelScope) -> None:
        with scope:
            async with lock:
                got.append(scope)
                await trio.lowlevel.checkpoint()

    async with lock:
        nursery.start_soon(waiting, first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(waiting, second)
        await trio.testing.wait_all_tasks_blocked()
    first.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert got[-1] is second
    async with lock:
        pass


async def test_a_cancelled_wait_for_the_lock_is_forgotten() -> None:
    lock = ReadLock()
    async with lock:
        with trio.move_on_after(0) as scope:
            async with lock:
                pytest.fail("it is taken")
        assert scope.cancelled_caught
    async with lock:
        pass


def test_a_free_lock_takes_no_turn() -> None:
    async def take() -> None:
        async with ReadLock():
            pass

    with pytest.raises(StopIteration):
        take().send(None)


def test_pyfuse3_uses_it_and_gets_trio_back() -> None:
    """If this fails pyfuse3 has changed what it takes from trio."""
    undo = install(Pump(lambda: True))
    ours = vars(pyfuse3)["trio"]
    assert ours.Lock is ReadLock
    assert ours.open_nursery is trio.open_nursery
    assert ours.ClosedResourceError is trio.ClosedResourceError
    assert isinstance(ours.lowlevel, Pump)
    assert ours.lowlevel.current_task is trio.lowlevel.current_task
    undo()
    assert vars(pyfuse3)["trio"] is trio
