"""The tail where the process may not write as far as the file reaches."""

import errno
import resource

import pytest

from commitfs.store.tail import STEP, Tail
from tests.support import stores
from tests.support.memory_file import MemoryFile


def test_room_ends_where_the_process_may_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: zeros laid by another process are no room for one with a lower limit (RLIMIT_FSIZE)."""
    file = MemoryFile(stores.disk())
    size = file.size()
    zeros = size + 4 * STEP
    file.allocate(size, 4 * STEP)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (size + STEP, -1))
    tail = Tail(file, zeros)
    tail.reserve(size + STEP)
    for _ in range(2):
        with pytest.raises(OSError, match="large") as caught:
            tail.reserve(size + STEP + 1)
        assert caught.value.errno == errno.EFBIG
    monkeypatch.undo()
    Tail(file, zeros).reserve(size + 2 * STEP)
