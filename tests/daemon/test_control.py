"""Whoever waits for a daemon's last word gets it: whether everything is durable."""

import os
import socket
from pathlib import Path

import pytest
import trio

from commitfs.daemon import control
from commitfs.daemon.control import Control, Waiter
from commitfs.daemon.mountinfo import Mount
from commitfs.errors import CommitfsError


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
