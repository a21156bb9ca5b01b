"""One store with a known history, and the command line run in this process."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from commitfs.cli.app import run
from commitfs.format.keys import ROOT_INO
from tests.support.world import CTX, lookup, open_vfs, save_again

ODD = b"b\xff\n\x1b'"
"""A name that is no text, breaks lines and would speak to a terminal."""
BIG = bytes(range(256)) * 10_240


class Ran(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


Cli = Callable[..., Ran]


async def build(path: Path) -> None:
    async with open_vfs(path) as vfs:
        await save_again(vfs, ROOT_INO, b"a.txt", b"one\n")  # 2
        await save_again(vfs, ROOT_INO, b"a.txt", b"two two\n")  # 3
        await vfs.mkdir(ROOT_INO, b"d", stat.S_IFDIR | 0o750, CTX)
        d = await lookup(vfs, b"d")
        await save_again(vfs, d, ODD, b"odd")  # 4
        await vfs.unlink(ROOT_INO, b"a.txt", CTX)
        await vfs.symlink(ROOT_INO, b"l", b"d", CTX)
        await vfs.settle()  # 5
        await save_again(vfs, ROOT_INO, b"a.txt", b"three")  # 6
        await vfs.rename(ROOT_INO, b"d", ROOT_INO, b"e", 0, CTX)
        await vfs.settle()  # 7
        await save_again(vfs, ROOT_INO, b"big", BIG)  # 8


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "s.db"
    trio.run(build, path)
    return path


@pytest.fixture
def store(made_store: Path) -> Path:
    """Only for reading."""
    return made_store


@pytest.fixture
def damaged(tmp_path: Path, store: Path) -> Path:
    """One bit of one file's contents is wrong."""
    data = bytearray(store.read_bytes())
    data[data.index(BIG[:65536]) + 100] ^= 1
    path = tmp_path / "s.db"
    path.write_bytes(data)
    return path


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    def call(*args: object) -> Ran:
        code = run([str(arg) for arg in args])
        out, err = capfdbinary.readouterr()
        return Ran(code, out, err.decode())

    return call
