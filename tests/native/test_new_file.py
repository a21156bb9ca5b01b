"""A new file's commit put together in C: sizes that do not fit are refused, and nothing is changed.

That the bytes are right is held against the general way in tests/vfs/test_newfile.py.
"""

from typing import Any

import pytest

from commitfs.format.facts import Change, Facts, decode_facts
from commitfs.format.node import NO_ROOT
from commitfs.native import crc32c, ffi, lib
from commitfs.store.nodes import Nodes
from commitfs.store.tree import Tree
from tests.support.memory_log import MemoryLog

INODE, PARENT = b"i" * 72, b"p" * 76
DATA = b"contents"


def numbers() -> Any:
    told: Any = ffi.new("cfs_new_file_numbers *")
    told.offset, told.clock_ns, told.size, told.cookie = 8320, -5, len(DATA), 77 << 7
    told.uid, told.pid, told.commit, told.ino, told.folder = 1, 2, 3, 300, 256
    return told


def make(
    tree: Any,
    *,
    program: bytes = b"cp",
    path: bytes = b"a/name",
    name_size: int = 4,
    inode: bytes = INODE,
    parent: bytes = PARENT,
    data: bytes = DATA,
) -> int:
    return lib.cfs_new_file(
        tree, numbers(), program, len(program), path, len(path), name_size,
        inode, len(inode), parent, len(parent), data, len(data),
    )  # fmt: skip


@pytest.fixture
def tree() -> Tree:
    return Tree(Nodes(MemoryLog()), NO_ROOT)


def test_facts_data_and_nodes_in_one_piece(tree: Tree) -> None:
    made = tree.build_with(make)
    length = int.from_bytes(made[4:8], "little")
    told = Facts(-5, 1, 2, b"cp", (Change("create", b"a/name", len(DATA)),))
    assert decode_facts(made[:length], crc32c) == told
    assert made[length : length + len(DATA)] == DATA
    assert tree.root.offset + tree.root.length == 8320 + len(made)
    assert [value for _, value in tree.scan(b"")][1:] == [made_dentry(), INODE, extent(8320 + length)]
    assert not tree.dirty


def made_dentry() -> bytes:
    return b"\x08" + (3).to_bytes(4, "little") + (300).to_bytes(4, "little") + b"name"


def extent(offset: int) -> bytes:
    sizes = [len(DATA), 0, len(DATA)]
    head = b"".join(size.to_bytes(4, "little") for size in sizes)
    return head + offset.to_bytes(8, "little") + crc32c(DATA).to_bytes(4, "little")


@pytest.mark.parametrize(
    "wrong",
    [
        {"program": b"p" * 256},
        {"path": b"p" * (lib.CFS_NEW_FILE_PATH + 1)},
        {"name_size": 7},
        {"path": b"p" * 300, "name_size": 256},
        {"inode": b"i" * 513},
        {"parent": b"p" * 513},
        {"data": b""},
        {"data": bytes(lib.CFS_EXTENT_MAX + 1)},
    ],
)
def test_what_does_not_fit_is_refused(tree: Tree, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="out of bounds"):
        tree.build_with(lambda handle: make(handle, **wrong))
    assert (tree.dirty, tree.edits) == (False, 0)


def test_the_longest_of_all(tree: Tree) -> None:
    """Bounds of the buffer in C; the sanitizers look on in one of the runs."""
    longest: dict[str, Any] = {
        "program": b"p" * 255,
        "path": b"p" * lib.CFS_NEW_FILE_PATH,
        "name_size": 255,
        "inode": b"i" * 512,
        "parent": b"p" * 512,
        "data": b"d" * lib.CFS_EXTENT_MAX,
    }
    made = tree.build_with(lambda handle: make(handle, **longest))
    assert len(made) > lib.CFS_EXTENT_MAX
