"""Each handler hands its arguments on and its answer back."""

import errno
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio

from commitfs.fuse.operations import Operations
from commitfs.vfs.api import Ctx, Opened, SetAttr, StatFs
from tests.fuse.fake_vfs import ATTR, operations

CTX: Any = SimpleNamespace(uid=10, gid=20, pid=30, umask=0o22)
WHO = Ctx(10, 20, 30, 0o22)
FIELDS: Any = SimpleNamespace(
    update_mode=True,
    update_uid=False,
    update_gid=False,
    update_size=True,
    update_atime=False,
    update_mtime=False,
    update_ctime=False,
)

ENTRIES = [
    ("lookup", (1, b"a\xff", CTX), (1, b"a\xff", WHO)),
    ("getattr", (7, CTX), (7, WHO)),
    ("mknod", (1, b"p", 0o10644, 5, CTX), (1, b"p", 0o10644, 5, WHO)),
    ("mkdir", (1, b"d", 0o40755, CTX), (1, b"d", 0o40755, WHO)),
    ("symlink", (1, b"l", b"to", CTX), (1, b"l", b"to", WHO)),
    ("link", (7, 1, b"n", CTX), (7, 1, b"n", WHO)),
]


@pytest.mark.parametrize(("name", "args", "wanted"), ENTRIES)
async def test_calls_that_give_an_entry(name: str, args: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    ops, fake = operations(**{name: ATTR})
    found = await getattr(ops, name)(*args)
    assert isinstance(found, pyfuse3.EntryAttributes)
    assert (found.st_ino, found.st_mode) == (ATTR.ino, ATTR.mode)
    assert fake.calls == [(name, *wanted)]


PLAIN = [
    ("unlink", (1, b"n", CTX), (1, b"n", WHO), None),
    ("rmdir", (1, b"n", CTX), (1, b"n", WHO), None),
    ("rename", (1, b"a", 2, b"b", 1, CTX), (1, b"a", 2, b"b", 1, WHO), None),
    ("readlink", (7, CTX), (7,), b"target\xfe"),
    ("getxattr", (7, b"user.x", CTX), (7, b"user.x", WHO), b"\0value"),
    ("setxattr", (7, b"user.x", b"v", CTX), (7, b"user.x", b"v", WHO), None),
    ("listxattr", (7, CTX), (7, WHO), [b"user.x"]),
    ("removexattr", (7, b"user.x", CTX), (7, b"user.x", WHO), None),
    ("read", (5, 10, 20), (5, 10, 20), b"bytes"),
    ("write", (5, 10, b"data"), (5, 10, b"data"), 4),
    ("flush", (5,), (5,), None),
    ("release", (5,), (5,), None),
    ("fsync", (5, True), (5, True), None),
    ("opendir", (7, CTX), (7, WHO), 9),
    ("releasedir", (9,), (9,), None),
    ("fsyncdir", (9, False), (9, False), None),
]


@pytest.mark.parametrize(("name", "args", "wanted", "answer"), PLAIN)
async def test_calls_with_plain_answers(
    name: str, args: tuple[Any, ...], wanted: tuple[Any, ...], answer: object
) -> None:
    ops, fake = operations(**{name: answer})
    assert await getattr(ops, name)(*args) == answer
    assert fake.calls == [(name, *wanted)]


@pytest.mark.parametrize("fh", [None, 5])
async def test_setattr(fh: int | None) -> None:
    ops, fake = operations(setattr=ATTR)
    given = pyfuse3.EntryAttributes()
    given.st_mode, given.st_size = 0o100600, 12
    found = await ops.setattr(7, given, FIELDS, fh, CTX)
    assert found.st_size == ATTR.size
    assert fake.calls == [("setattr", 7, SetAttr(mode=0o100600, size=12), fh, WHO)]


async def test_open_and_create() -> None:
    ops, fake = operations(open=Opened(5, True, False), create=(Opened(6, False, True), ATTR))
    info = await ops.open(7, 0o100001, CTX)
    assert (info.fh, info.direct_io, info.keep_cache) == (5, True, False)
    info, attr = await ops.create(1, b"new", 0o100644, 0o1102, CTX)
    assert (info.fh, info.direct_io, info.keep_cache, attr.st_ino) == (6, False, True, ATTR.ino)
    assert fake.calls == [("open", 7, 0o100001, WHO), ("create", 1, b"new", 0o100644, 0o1102, WHO)]


async def test_access_and_statfs() -> None:
    ops, fake = operations(statfs=StatFs(*range(9)))
    assert await ops.access(7, 4, CTX) is True
    assert (await ops.statfs(CTX)).f_namemax == 8
    assert fake.calls == [("access", 7, 4, WHO), ("statfs", WHO)]


async def test_errors_of_the_vfs_become_errnos(caplog: pytest.LogCaptureFixture) -> None:
    ops, _ = operations(write=OSError(errno.ENOSPC, "full"), mkdir=TypeError("a bug"))
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await ops.write(5, 0, b"x")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await ops.mkdir(1, b"d", 0o40755, CTX)
    assert caught.value.errno == errno.EIO
    assert "mkdir" in caplog.text
    caplog.clear()


def test_every_handler_reaches_the_vfs_before_it_waits() -> None:
    """Requests are registered in the order in which the kernel sent them (no loop runs here)."""
    calls = [(name, args) for name, args, _ in ENTRIES] + [(name, args) for name, args, *_ in PLAIN]
    for name, args in calls:
        ops, fake = operations(**{name: ATTR})
        coroutine = getattr(ops, name)(*args)
        with pytest.raises(StopIteration):
            coroutine.send(None)
        assert fake.calls[0][0] == name


def test_caching_flags() -> None:
    assert Operations.enable_writeback_cache is False
    assert Operations.enable_acl is False
    assert Operations.supports_dot_lookup is True


async def test_serving_begins_with_the_kernels_first_message() -> None:
    ops, _ = operations()
    with trio.move_on_after(0) as scope:
        await ops.serving.wait()
    assert scope.cancelled_caught
    ops.init()
    await ops.serving.wait()
