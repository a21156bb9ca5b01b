"""A store on a file in memory that fails on command (tests/support/failing_file.py), has little room
(tests/support/stores.py), or whose writes wait at gates (tests/support/gates.py)."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from commitfs.vfs.create import create_store
from tests.support.crash_file import Trace, crash_opener
from tests.support.failing_file import FailingFile, Faults, failing_opener
from tests.support.gates import GatedWorld, gated_vfs
from tests.support.memory_file import MemoryDisk
from tests.support.stores import LimitedDisk

Opener = Callable[[object, bool], FailingFile]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_store(tmp_path / "store.db", uid=0, gid=0)
    return tmp_path / "store.db"


@pytest.fixture
def disk(path: Path) -> LimitedDisk:
    return LimitedDisk(path.read_bytes())


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def failing(disk: MemoryDisk, faults: Faults) -> Opener:
    return failing_opener(crash_opener(disk, Trace(b"")), faults)


@pytest.fixture
async def world(path: Path) -> AsyncIterator[GatedWorld]:
    async with gated_vfs(path) as world:
        yield world
