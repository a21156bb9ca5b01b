"""Mounting: options for libfuse, what it complains about, the hook for the kernel's caches."""

import errno
import os
from typing import Any

import pyfuse3
import pytest

from commitfs.errors import CommitfsError
from commitfs.fuse import FSTYPE, SUBTYPE
from commitfs.fuse.session import Session, SessionOptions
from tests.fuse.fake_vfs import FakeVfs


def session(fake: FakeVfs | None = None, **options: Any) -> Session:
    return Session(fake or FakeVfs(), b"/nowhere/m\xff", SessionOptions(b"/s.db", **options))  # type: ignore[arg-type]


def test_options() -> None:
    plain = SessionOptions(b"/s.db").for_libfuse()
    assert plain == {"fsname=/s.db", "subtype=commitfs", "default_permissions"}
    most = SessionOptions(b"/s.db", read_only=True, allow_other=True, flags=("noexec",)).for_libfuse()
    assert most - plain == {"ro", "allow_other", "noexec"}
    assert f"fuse.{SUBTYPE}" == FSTYPE


def test_a_stores_path_may_be_any_bytes() -> None:
    """libfuse splits options at commas; pyfuse3 encodes them as ASCII."""
    (fsname,) = [o for o in SessionOptions(b"/a,b\\c\xff\n=.db").for_libfuse() if o.startswith("fsname")]
    assert fsname.encode("us-ascii") == b"fsname=/a\\,b\\\\c\xff\n=.db"


async def test_what_libfuse_says_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refusing(operations: object, mountpoint: str, options: set[str]) -> None:
        assert mountpoint == "/nowhere/m\udcff"
        os.write(2, b"fusermount3: no write access\n\nfuse: and that was that\n")
        raise RuntimeError("fuse_session_mount failed")

    monkeypatch.setattr(pyfuse3, "init", refusing)
    with pytest.raises(CommitfsError) as caught:
        async with session():
            pytest.fail("not mounted")
    wanted = "cannot mount at /nowhere/m\udcff: fusermount3: no write access; fuse: and that was that"
    assert str(caught.value) == wanted
    os.write(2, b"here again")
    assert capfd.readouterr().err == "here again"


async def test_without_a_word_from_libfuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*args: object) -> None:
        raise RuntimeError("fuse_session_new() failed")

    monkeypatch.setattr(pyfuse3, "init", refusing)
    with pytest.raises(CommitfsError, match=r"fuse_session_new\(\) failed"):
        await session().__aenter__()


class Closed:
    """Stands in for pyfuse3.init and close."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unmounted: list[bool] = []
        monkeypatch.setattr(pyfuse3, "init", lambda *args: None)
        monkeypatch.setattr(pyfuse3, "close", lambda unmount: self.unmounted.append(unmount))


async def test_a_good_end_unmounts(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Closed(monkeypatch)
    async with session():
        assert closed.unmounted == []
    assert closed.unmounted == [True]


async def test_a_bad_end_leaves_the_mount_dead_rather_than_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Closed(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        async with session():
            raise ZeroDivisionError
    assert closed.unmounted == [False]


async def test_the_kernel_forgets_attributes_on_demand(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Closed(monkeypatch)
    asked: list[tuple[int, bool]] = []
    trouble: list[OSError] = [OSError(errno.ENOENT, "unknown inode"), OSError(errno.ENOSYS, "old kernel")]

    def invalidate(inode: int, attr_only: bool) -> None:
        asked.append((inode, attr_only))
        if trouble:
            raise trouble.pop()

    monkeypatch.setattr(pyfuse3, "invalidate_inode", invalidate)
    fake = FakeVfs()
    async with session(fake):
        for _ in range(3):
            fake.invalidate(7)
    assert asked == [(7, True)] * 3
    fake.invalidate(7)
    assert len(asked) == 3, "nobody to tell any more"
    assert not caplog.records


@pytest.mark.parametrize("mountpoint", ["/", "/nowhere"])
async def test_aborted_while_the_kernel_unmounts(monkeypatch: pytest.MonkeyPatch, mountpoint: str) -> None:
    """An end like any other, unless the mount is still there and dead."""

    async def aborted() -> None:
        raise ExceptionGroup("", [ConnectionAbortedError(errno.ECONNABORTED, "fuse_session_receive_buf")])

    monkeypatch.setattr(pyfuse3, "main", aborted)
    ending = Session(FakeVfs(), os.fsencode(mountpoint), SessionOptions(b"/s.db"))  # type: ignore[arg-type]
    if mountpoint == "/":
        await ending.serve()
    else:
        with pytest.raises(ExceptionGroup) as caught:
            await ending.serve()
        assert caught.group_contains(ConnectionAbortedError)
