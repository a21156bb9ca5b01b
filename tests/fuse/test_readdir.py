"""F2: the vfs counts exactly the entries the kernel took."""

import errno
from typing import Any, cast

import pytest

from commitfs.errors import CorruptError, FsError
from commitfs.fuse import readdir
from tests.fuse.fake_vfs import ATTR, FakeVfs


class Kernel:
    """Stands in for readdir_reply: takes `room` entries, then has no more room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self.taken: list[tuple[bytes, int, int]] = []
        monkeypatch.setattr("pyfuse3.readdir_reply", self.reply)

    def reply(self, token: object, name: bytes, attr: Any, next_id: int) -> bool:
        if self.room == 0:
            return False
        self.room -= 1
        self.taken.append((name, attr.st_ino, next_id))
        return True


def batch(*numbers: int) -> list[tuple[bytes, Any, int]]:
    return [(b"n%d" % number, ATTR._replace(ino=number), number * 10) for number in numbers]


DOTS = [(b".", ATTR._replace(ino=1), 1), (b"..", ATTR._replace(ino=1), 2)]


async def listing(fake: FakeVfs, start: int = 0) -> None:
    await readdir.list_into(fake, 4, start, cast(Any, None))


async def test_all_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, fake = Kernel(monkeypatch, 100), FakeVfs()
    fake.listings = [[*DOTS, *batch(5, 6)], batch(7)]
    await listing(fake)
    assert [name for name, _, _ in kernel.taken] == [b".", b"..", b"n5", b"n6", b"n7"]
    assert fake.counted == [5, 6, 7], "not the dots"
    assert fake.calls == [("readdir", 4, 0), ("readdir", 4, 60), ("readdir", 4, 70)]


@pytest.mark.parametrize("room", range(7))
async def test_a_kernel_that_is_full(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    kernel, fake = Kernel(monkeypatch, room), FakeVfs()
    fake.listings = [[*DOTS, *batch(5, 6)], batch(7, 8)]
    await listing(fake)
    taken = [ino for name, ino, _ in kernel.taken if name not in (b".", b"..")]
    assert len(kernel.taken) == room or room > 6
    assert fake.counted == taken


async def test_going_on_behind_a_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, fake = Kernel(monkeypatch, 1), FakeVfs()
    fake.listings = [batch(8)]
    await listing(fake, start=70)
    assert fake.calls[0] == ("readdir", 4, 70)
    assert kernel.taken == [(b"n8", 8, 80)]


async def test_an_error_before_anything_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(monkeypatch, 9)
    fake = FakeVfs()
    fake.listings = [FsError(errno.EBADF)]
    with pytest.raises(FsError):
        await listing(fake)
    assert fake.counted == []


async def test_an_error_behind_entries_taken_comes_with_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were it reported at once, the kernel would drop entries that are counted already."""
    kernel, fake = Kernel(monkeypatch, 9), FakeVfs()
    fake.listings = [batch(5), CorruptError("tree node", 1), CorruptError("tree node", 1)]
    await listing(fake)
    assert fake.counted == [5]
    with pytest.raises(CorruptError):
        await listing(fake, start=kernel.taken[-1][2])


async def test_only_dots_taken_is_nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(monkeypatch, 9)
    fake = FakeVfs()
    fake.listings = [[*DOTS], FsError(errno.EIO)]
    await listing(fake)
    assert fake.counted == []
