"""A vfs that answers from a table and notes every call: the adapter is tested against it, no kernel."""

from collections.abc import Callable, Sequence
from typing import Any

from commitfs.fuse.operations import Operations
from commitfs.vfs.api import Attr

ATTR = Attr(
    ino=77,
    mode=0o100640,
    nlink=3,
    uid=1000,
    gid=1001,
    rdev=0,
    size=1 << 33,
    blocks=9,
    atime_ns=1_000_000_001,
    mtime_ns=-1,
    ctime_ns=1_700_000_000_123_456_789,
    entry_valid=2.5,
    attr_valid=1e9,
)


class FakeVfs:
    """Any method may be called; ``answers[name]`` is what it returns, or an exception to raise."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []
        self.listings: list[list[tuple[bytes, Attr, int]] | Exception] = []
        self.counted: list[int] = []
        self.invalidate: Callable[[int], None] = print

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def method(*args: Any) -> Any:
            self.calls.append((name, *args))
            answer = self.answers.get(name)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return method

    def forget(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.calls.append(("forget", list(pairs)))
        if isinstance(self.answers.get("forget"), Exception):
            raise self.answers["forget"]

    async def readdir(self, fh: int, start: int) -> list[tuple[bytes, Attr, int]]:
        self.calls.append(("readdir", fh, start))
        batch = self.listings.pop(0) if self.listings else []
        if isinstance(batch, Exception):
            raise batch
        return batch

    def listed(self, ino: int) -> None:
        self.counted.append(ino)


def operations(**answers: Any) -> tuple[Operations, FakeVfs]:
    fake = FakeVfs(**answers)
    return Operations(fake), fake  # type: ignore[arg-type]
