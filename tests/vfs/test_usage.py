"""The figures of a store are those of its newest tree, each thing counted once."""

import os
import stat
from pathlib import Path

import trio

from commitfs.format.keys import ROOT_INO
from commitfs.store.store import Store
from commitfs.vfs.usage import Usage, usage_of
from tests.support.world import CTX, lookup, open_vfs, save_again


def usage(path: Path) -> Usage:
    store = Store.open(path)
    try:
        return usage_of(store)
    finally:
        store.close()


def test_a_store_without_commits_holds_nothing(tmp_path: Path) -> None:
    Store.create(tmp_path / "s.db")
    size = (tmp_path / "s.db").stat().st_size
    assert usage(tmp_path / "s.db") == Usage(0, 0, 0, size, size, 0, 0, 0, 0, 0, 0)


def test_links_holes_long_values_and_what_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def fill() -> None:
        async with open_vfs(path) as vfs:
            await save_again(vfs, ROOT_INO, b"f", bytes(range(256)) * 1000)
            await save_again(vfs, ROOT_INO, b"f", b"short")
            f = await lookup(vfs, b"f")
            await vfs.link(f, ROOT_INO, b"g", CTX)
            await vfs.setxattr(f, b"user.long", b"v" * 1000, CTX)
            await vfs.symlink(ROOT_INO, b"l", b"t" * 2000, CTX)
            opened, _ = await vfs.create(ROOT_INO, b"sparse", 0o600, os.O_WRONLY, CTX)
            await vfs.write(opened.fh, 1 << 30, b"end")
            await vfs.flush(opened.fh)
            await vfs.release(opened.fh)
            await vfs.mkdir(ROOT_INO, b"d", stat.S_IFDIR | 0o755, CTX)

    trio.run(fill)
    found = usage(path)
    assert (found.files, found.directories, found.others) == (2, 2, 1)
    assert found.live_data == len(b"short") + 1000 + 2000 + len(b"end")
    assert found.live_bytes == found.live_data + found.live_metadata
    assert (found.commits, found.oldest) == (found.newest, 1)
    assert found.file_bytes == path.stat().st_size >= found.published_end
