"""M4: a file's contents and the rename or link that commits them are in one commit, or in none, whatever
fails on the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitfs.errors import CommitfsError, CorruptError
from commitfs.format.keys import ROOT_INO
from commitfs.store.store import Store
from commitfs.store.tree import Tree
from commitfs.store.txn import Txn
from commitfs.vfs import commits, newfile
from commitfs.vfs.commits import Commits
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs
from tests.support.world import CTX, lookup, new, open_vfs, save

OLD, NEW = b"old contents", b"new contents of it"

STEPS: dict[str, tuple[Any, str]] = {
    "facts": (commits, "encode_facts"),
    "what was read before": (Commits, "_touch"),
    "contents": (Commits, "_save_contents"),
    "a new file": (newfile, "encode_inode"),
    "the tree": (Tree, "apply"),
    "its nodes": (Tree, "build"),
    "both in C": (Tree, "build_with"),
    "the record": (Txn, "finish"),
}


async def rename(vfs: Vfs, _: int) -> None:
    await vfs.rename(ROOT_INO, b"tmp", ROOT_INO, b"moved", 0, CTX)


async def replace(vfs: Vfs, _: int) -> None:
    await vfs.rename(ROOT_INO, b"tmp", ROOT_INO, b"f", 0, CTX)


async def link(vfs: Vfs, ino: int) -> None:
    await vfs.link(ino, ROOT_INO, b"linked", CTX)


def failing(error: Exception, calls: int, real: Callable[..., object]) -> Callable[..., object]:
    """The call numbered `calls` fails, as all behind it."""
    left = calls

    def step(*args: object, **options: object) -> object:
        nonlocal left
        left -= 1
        if left <= 0:
            raise error
        return real(*args, **options)

    return step


@pytest.mark.parametrize("act", [rename, replace, link])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("step", STEPS)
async def test_m4_all_or_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Vfs, int], Any],
    fresh: bool,
    calls: int,
    step: str,
) -> None:
    path = tmp_path / "s.db"
    async with open_vfs(path, clean=False) as vfs:
        await save(vfs, b"f", OLD)
        if not fresh:
            await save(vfs, b"tmp", b"before")
            ino = await lookup(vfs, b"tmp")
            fh = (await vfs.open(ino, 1, CTX)).fh
        else:
            fh, ino = await new(vfs, b"tmp")
        await vfs.write(fh, 0, NEW)
        where, name = STEPS[step]
        error = CorruptError("tree node", 8192) if name == "_touch" else MemoryError()
        with monkeypatch.context() as patched:
            patched.setattr(where, name, failing(error, calls, getattr(where, name)))
            try:
                await act(vfs, ino)
            except (CommitfsError, MemoryError):
                worked = False
            else:
                worked = True
        try:
            await save(vfs, b"other", b"of somebody else")
        except CommitfsError:
            assert vfs.live.broken is not None
    with_store = Store.open(path)
    for record in with_store.records():
        snapshot = Snapshot(with_store, record)
        seen = {entry: snapshot.read(i, 0, 99) for entry, i, _ in snapshot.entries(ROOT_INO)}
        assert seen.get(b"f", OLD) in (OLD, NEW)
        assert seen.get(b"tmp", NEW) in ((NEW,) if fresh else (NEW, b"before"))
        assert seen.get(b"moved", NEW) == NEW
        assert seen.get(b"linked", NEW) == NEW
        if b"other" in seen:
            # Somebody else's commit: what failed is not in it, neither in part.
            assert b"f" in seen
            done = {b"moved", b"linked"} & set(seen) or seen[b"f"] == NEW
            assert bool(done) == worked
            assert (b"tmp" in seen) == (not fresh if not worked else act is link)
    with_store.close()
