"""A new store and its root directory appear together, or nothing does."""

import os
import stat
from pathlib import Path

import pytest

from commitfs.errors import UsageError
from commitfs.store.store import Store
from commitfs.vfs import create
from commitfs.vfs.create import create_store
from commitfs.vfs.snapshot import Snapshot


def test_it_has_one_commit_with_an_empty_root(tmp_path: Path) -> None:
    create_store(tmp_path / "s.db", mode=0o750, uid=5, gid=6, align=4096)
    assert os.listdir(tmp_path) == ["s.db"]
    assert stat.S_IMODE((tmp_path / "s.db").stat().st_mode) == 0o600
    store = Store.open(tmp_path / "s.db")
    assert (store.durable_id, store.align) == (1, 4096)
    snapshot = Snapshot(store, store.head)
    assert list(snapshot.walk()) == []
    root = snapshot.attr(1)
    assert (root.mode, root.uid, root.gid) == (stat.S_IFDIR | 0o750, 5, 6)
    store.close()


def test_nothing_is_made_over_another_file_or_in_no_directory(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        create_store(tmp_path / "s.db")
    with pytest.raises(UsageError, match="directory"):
        create_store(tmp_path / "no" / "s.db")
    with pytest.raises(UsageError, match="directory"):
        create_store(tmp_path / "s.db" / "s.db")
    assert (tmp_path / "s.db").read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["s.db"]


def test_a_first_commit_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(create, "first_commit", failing)
    with pytest.raises(OSError, match="space"):
        create_store(tmp_path / "s.db")
    assert os.listdir(tmp_path) == []
