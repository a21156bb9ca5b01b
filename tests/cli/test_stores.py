"""From what the user names to a store file and a path in it."""

import os
from pathlib import Path

import pytest

from commitfs.cli.stores import store_path, tree_path
from commitfs.daemon import mountinfo
from commitfs.errors import NotFoundError, UsageError


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", b""),
        ("/", b""),
        ("a", b"a"),
        ("/a//b/./c/", b"a/b/c"),
        ("\udcff\n ", b"\xff\n "),
        ("...", b"..."),
        ("a..b", b"a..b"),
    ],
)
def test_paths(text: str, path: bytes) -> None:
    assert tree_path(text) == path


@pytest.mark.parametrize("text", ["..", "a/..", "../a", "/.."])
def test_no_way_out(text: str) -> None:
    with pytest.raises(UsageError):
        tree_path(text)


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table that says that the file system `tmp_path` lies on is a commitfs, from `tmp_path`/s.db."""
    device = tmp_path.stat().st_dev
    line = f"9 1 {os.major(device)}:{os.minor(device)} / / rw - fuse.commitfs {tmp_path}/s.db rw\n"
    (tmp_path / "mountinfo").write_text(line)
    monkeypatch.setattr(mountinfo, "MOUNTINFO", str(tmp_path / "mountinfo"))
    return tmp_path


def test_a_path_in_a_mount_stands_for_its_store(mounted: Path, store: Path) -> None:
    source = os.fsencode(mounted / "s.db")
    (mounted / "s.db").write_bytes(b"whatever")
    (mounted / "d").mkdir()
    (mounted / "f").write_text("f")
    for name in ("d", "f", "."):
        assert store_path(os.fsencode(mounted / name)) == source
    assert store_path(os.fsencode(store)) == os.fsencode(store), "a store kept there is itself"


def test_a_store_that_was_moved_away(mounted: Path) -> None:
    with pytest.raises(NotFoundError, match="give its path"):
        store_path(os.fsencode(mounted))


def test_anything_else_is_the_store(tmp_path: Path) -> None:
    for name in (b"missing", os.fsencode(tmp_path), b"/proc/self/status"):
        assert store_path(name) == name
