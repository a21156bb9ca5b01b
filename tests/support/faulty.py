"""Acts on a vfs whose store file fails, and what is on the device afterwards."""

import errno
import random
import stat
from collections.abc import Awaitable

import pytest

from commitfs.errors import CommitfsError, FsError, ReadOnlyError
from commitfs.store.check import check_store
from commitfs.store.store import Store
from commitfs.vfs.check import check_trees
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs
from tests.support.crash_file import memory_opener
from tests.support.failing_file import Faults, Kind
from tests.support.memory_file import MemoryDisk
from tests.support.world import CTX, contents

PIECE = 128 << 10


def fail(faults: Faults, name: str, code: int, *, at: int = 1, kind: Kind = Kind.ERROR) -> None:
    """From its `at`-th call on, `name` fails until the fault is healed."""
    faults.names, faults.errno, faults.kind = frozenset({name}), code, kind
    faults.calls, faults.at, faults.lasting = 0, at, True


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


async def write(vfs: Vfs, fh: int, data: bytes, at: int = 0) -> None:
    """In pieces, as the kernel does."""
    for start in range(0, len(data), PIECE):
        await vfs.write(fh, at + start, data[start : start + PIECE])


async def whole(vfs: Vfs, ino: int) -> bytes:
    return await contents(vfs, ino, (await vfs.getattr(ino, CTX)).size)


async def refusal(act: Awaitable[object]) -> int | None:
    """The errno a call is refused with, None if it is not."""
    try:
        await act
    except ReadOnlyError:
        return errno.EROFS
    except (FsError, OSError) as error:
        return error.errno
    return None


def in_newest(vfs: Vfs, path: bytes) -> bool:
    try:
        return Snapshot(vfs.store, vfs.store.head).resolve(path) > 0
    except FsError:
        return False


def reopened(disk: MemoryDisk) -> dict[bytes, bytes | None]:
    """Contents by path (None: a directory) of the newest commit that is on the device; all is sound."""
    disk.drop_cache()
    store = Store.open("memory", opener=memory_opener(disk))
    assert list(check_store(store)) == []
    assert list(check_trees(store)) == []
    snapshot = Snapshot(store, store.head)
    found = {
        path: None if kind == stat.S_IFDIR >> 12 else snapshot.read(ino, 0, 1 << 30)
        for path, ino, kind in snapshot.walk()
    }
    store.close()
    return found


async def failed_close(vfs: Vfs, fh: int) -> None:
    with pytest.raises((OSError, CommitfsError)):
        await vfs.flush(fh)
    assert vfs.store.latched is not None
