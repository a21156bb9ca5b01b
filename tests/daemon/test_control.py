"""Whoever waits for a daemon's last word gets it: whether everything is durable."""

import errno
import os
import socket
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from commitfs.daemon import control
from commitfs.daemon.control import Control, Waiter
from commitfs.daemon.mountinfo import Mount
from commitfs.errors import CommitfsError
from tests.support.mounted import NOBODY


@pytest.fixture
def mount() -> Mount:
    """A mount whose device number is nobody else's."""
    return Mount(f"test-{os.getpid()}", b"/m", False, "fuse.commitfs", b"/s.db", os.getuid())


async def serving(mount: Mount, nursery: trio.Nursery) -> Control:
    """A control that listens."""
    daemon = Control()
    nursery.start_soon(daemon.run, mount.device)
    await trio.testing.wait_all_tasks_blocked()
    return daemon


async def test_everything_is_durable(mount: Mount, nursery: trio.Nursery) -> None:
    daemon = await serving(mount, nursery)
    waiter = Waiter(mount)
    assert waiter.pid == os.getpid()
    daemon.finish(None)
    waiter.wait()


async def test_the_last_commit_failed(mount: Mount, nursery: trio.Nursery) -> None:
    daemon = await serving(mount, nursery)
    waiters = [Waiter(mount) for _ in range(3)]
    await trio.testing.wait_all_tasks_blocked()
    daemon.finish("no room: \udcff\n")
    for waiter in waiters:
        with pytest.raises(CommitfsError, match="no room"):
            waiter.wait()


async def test_a_daemon_that_dies(mount: Mount, nursery: trio.Nursery) -> None:
    daemon = await serving(mount, nursery)
    waiter = Waiter(mount)
    await trio.testing.wait_all_tasks_blocked()
    for client in daemon._clients:
        client.close()
    with pytest.raises(CommitfsError, match=f"process {os.getpid()}.* died"):
        waiter.wait()
    daemon.finish(None)


async def test_those_who_left_are_forgotten(mount: Mount, nursery: trio.Nursery) -> None:
    """A busy mount is not unmounted, and whoever tried it goes away: nothing piles up."""
    daemon = await serving(mount, nursery)
    for _ in range(20):
        Waiter(mount).close()
        await trio.testing.wait_all_tasks_blocked()
    assert len(daemon._clients) <= 1
    daemon.finish(None)


async def test_an_address_still_held_by_an_earlier_daemon(
    mount: Mount, nursery: trio.Nursery, autojump_clock: object
) -> None:
    held = socket.socket(socket.AF_UNIX)
    held.bind(control._address(mount.device))
    daemon = Control()
    nursery.start_soon(daemon.run, mount.device)
    await trio.sleep(10 * control.RETRY)
    with pytest.raises(OSError, match="refused"):
        Waiter(mount)
    held.close()
    await trio.sleep(2 * control.RETRY)
    waiter = Waiter(mount)
    daemon.finish(None)
    waiter.wait()


def test_nobody_listens(mount: Mount) -> None:
    with pytest.raises(OSError, match="refused"):
        Waiter(mount)


@pytest.mark.skipif(os.getuid() == 0, reason="root is always trusted")
async def test_another_users_socket_is_not_believed(mount: Mount, nursery: trio.Nursery) -> None:
    await serving(mount, nursery)
    from dataclasses import replace

    with pytest.raises(PermissionError):
        Waiter(replace(mount, owner=os.getuid() + 1))


def test_finishing_before_anything_began() -> None:
    Control().finish("the store is damaged")


def test_no_trace_is_left(mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            daemon = await serving(mount, nursery)
            daemon.finish(None)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="refused"):
        Waiter(mount)


def stranger(mount: Mount, user: int) -> tuple[int, int]:
    """A child process that connects as `user`: its pid, and a pipe that tells what it heard, in brackets."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(control._address(mount.device))
                os.write(writable, b"[")
                os.write(writable, peer.recv(100) + b"]")
        finally:
            os._exit(0)
    os.close(writable)
    return pid, readable


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
async def test_other_users_are_turned_away(mount: Mount, nursery: trio.Nursery) -> None:
    daemon = await serving(mount, nursery)
    pid, heard = stranger(mount, NOBODY)
    said = b""
    with trio.fail_after(30), open(heard, "rb", buffering=0) as pipe:
        while not said.endswith(b"]"):
            await trio.lowlevel.wait_readable(pipe)
            part = pipe.read(100)
            assert part, said
            said += part
    os.waitpid(pid, 0)
    assert said == b"[]", "turned away while the mount goes on"
    assert daemon._clients == []
    waiter = Waiter(mount)
    daemon.finish(None)
    waiter.wait()


async def test_connections_are_bounded_and_all_are_told(
    mount: Mount, nursery: trio.Nursery, autojump_clock: object
) -> None:
    daemon = await serving(mount, nursery)
    waiters = [Waiter(mount) for _ in range(control.MOST + control.QUEUE // 2)]
    await trio.sleep(10 * control.RETRY)
    assert len(daemon._clients) == control.MOST
    waiters.pop(0).close()
    await trio.sleep(2 * control.RETRY)
    assert len(daemon._clients) == control.MOST, "there was room for one more"
    daemon.finish(None)
    for waiter in waiters:
        waiter.wait()


async def test_want_of_a_descriptor_is_waited_out(
    mount: Mount, nursery: trio.Nursery, autojump_clock: object
) -> None:
    daemon = await serving(mount, nursery)
    assert daemon._listener is not None
    tries = 0

    class Starved:
        """The listener of a process that has no descriptor left."""

        def accept(self) -> object:
            nonlocal tries
            tries += 1
            raise OSError(errno.EMFILE, "Too many open files")

    listener = daemon._listener
    waiter = Waiter(mount)
    daemon._listener = cast(socket.socket, Starved())
    await trio.sleep(100 * control.RETRY)
    assert 50 < tries <= 102, "once each time, and no spinning"
    daemon._listener = listener
    await trio.sleep(2 * control.RETRY)
    assert len(daemon._clients) == 1
    daemon.finish(None)
    waiter.wait()
