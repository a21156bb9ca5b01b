"""New contents are refused before memory runs out, and taken again when there is some."""

import errno
import mmap
from pathlib import Path

import pytest

from commitfs.format.keys import ROOT_INO
from commitfs.vfs.headroom import STEP, Headroom
from tests.support.faulty import PIECE, noise, refusal, whole
from tests.support.world import CTX, close, committed, new, open_vfs, save


def test_looks_once_for_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = mmap.mmap

    def counted(fileno: int, length: int) -> mmap.mmap:
        nonlocal looks
        looks += 1
        return real(fileno, length)

    monkeypatch.setattr(mmap, "mmap", counted)
    headroom = Headroom()
    for _ in range(256):
        headroom.accept(STEP // 8)
    assert 25 < looks <= 40


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "no memory"), MemoryError()])
async def test_p1_write_says_that_there_is_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def no_memory(_fileno: int, _length: int) -> mmap.mmap:
        raise error

    async with open_vfs(tmp_path / "s.db") as vfs:
        fh, ino = await new(vfs, b"f")
        accepted = b""
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", no_memory)
            while await refusal(vfs.write(fh, len(accepted), part := noise(PIECE, len(accepted)))) is None:
                accepted += part
                assert len(accepted) <= STEP
            assert await refusal(vfs.write(fh, len(accepted), part)) == errno.ENOMEM
            assert await refusal(vfs.create(ROOT_INO, b"g", 0o644, 1, CTX)) == errno.ENOMEM
            assert await whole(vfs, ino) == accepted
            await close(vfs, fh)
        assert committed(vfs, b"f") == accepted
        await save(vfs, b"g", b"g")
        assert committed(vfs, b"g") == b"g"
