"""P7 in the live tree: damage of one place makes what needs it fail, and nothing else; and what a node
that was dropped from memory may not take along."""

import errno
import os
import struct
from pathlib import Path

import pytest

from commitfs.errors import CommitfsError, CorruptError, FsError
from commitfs.format.keys import ROOT_INO, dentry_key, extent_key, inode_key
from commitfs.format.node import Root
from commitfs.store.check import check_store
from commitfs.store.store import Store
from commitfs.vfs import live
from commitfs.vfs.check import check_trees
from commitfs.vfs.tree import find_dentry
from commitfs.vfs.vfs import Vfs
from tests.support.memory_file import MemoryDisk
from tests.support.stores import flip, opener
from tests.support.world import (
    CTX,
    close,
    commit_root,
    committed,
    contents,
    lookup,
    names,
    new,
    newest,
    open_vfs,
    save,
)

FILES = [b"a file with a rather long name, so that a node holds few of them, %03d" % n for n in range(90)]


@pytest.fixture
async def disk(path: Path) -> MemoryDisk:
    """A store with `FILES` and a subdirectory `sub` in each of the directories d and e."""
    made = MemoryDisk(path.read_bytes())
    async with open_vfs(path, opener=opener(made)) as vfs:
        for name in (b"d", b"e"):
            parent = (await vfs.mkdir(ROOT_INO, name, 0o755, CTX)).ino
            await vfs.mkdir(parent, b"sub", 0o755, CTX)
            for file in FILES:
                await vfs.mknod(parent, file, 0o100644, 0, CTX)
    return made


def leaf_of(store: Store, key: bytes) -> Root:
    """The leaf in which `key` is, or would be."""
    assert store.head is not None
    at = store.head.root
    while at.level:
        at = [child for low, child in store.nodes.children(at) if low <= key][-1]
    return at


def names_in(store: Store, at: Root, parent: int) -> list[bytes]:
    """Which of `FILES` have their dentry in a directory in this leaf."""
    there = {key for key, _ in store.nodes.entries(at)}
    tree = store.tree(store.head)
    found = []
    for name in FILES:
        dentry = find_dentry(tree, parent, name)
        assert dentry is not None
        if dentry_key(parent, dentry[0]) in there:
            found.append(name)
    return found


def damage_names(disk: MemoryDisk) -> tuple[list[bytes], Root]:
    """Damage a leaf that holds some of the dentries of d and nothing else: which of them."""
    store = Store.open("memory", opener=opener(disk))
    tree = store.tree(store.head)
    d = find_dentry(tree, ROOT_INO, b"d")
    assert d is not None
    middle = find_dentry(tree, d[1].ino, FILES[0])
    leaves = [leaf_of(store, dentry_key(d[1].ino, middle[0]))] if middle else []
    for file in FILES:
        if len(leaves) < 3 and (there := find_dentry(tree, d[1].ino, file)):
            leaf = leaf_of(store, dentry_key(d[1].ino, there[0]))
            if leaf not in leaves:
                leaves.append(leaf)
    inner = [
        leaf
        for leaf in leaves
        if all(key.startswith(dentry_key(d[1].ino, 0)[:9]) for key, _ in store.nodes.entries(leaf))
    ]
    assert inner, "each leaf holds something else as well"
    lost = names_in(store, inner[0], d[1].ino)
    store.close()
    flip(disk, inner[0].offset + 20)
    assert 0 < len(lost) < len(FILES)
    return lost, inner[0]


async def overwrite(vfs: Vfs, ino: int, data: bytes) -> None:
    fh = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
    await vfs.write(fh, 0, data)
    await close(vfs, fh)


async def still_saves(vfs: Vfs, name: bytes) -> None:
    """Files are saved elsewhere, and it is not said that a change failed half way."""
    assert vfs.live.broken is None
    await save(vfs, name, b"saved", parent=await lookup(vfs, b"e"))
    assert committed(vfs, b"e/" + name) == b"saved"


async def test_p7_a_damaged_part_of_a_directory(path: Path, disk: MemoryDisk) -> None:
    lost, _ = damage_names(disk)
    whole = [name for name in FILES if name not in lost]
    async with open_vfs(path, opener=opener(disk)) as vfs:
        d, e = await lookup(vfs, b"d"), await lookup(vfs, b"e")
        other = await lookup(vfs, b"e/" + lost[0])
        await still_saves(vfs, b"before")
        for act in (
            lambda: vfs.lookup(d, lost[0], CTX),
            lambda: names(vfs, d),
            lambda: vfs.unlink(d, lost[0], CTX),
            lambda: vfs.mkdir(d, lost[0], 0o755, CTX),
            lambda: vfs.create(d, lost[0], 0o644, os.O_WRONLY, CTX),
            lambda: vfs.link(other, d, lost[0], CTX),
            lambda: vfs.rename(e, lost[0], d, lost[0], 0, CTX),
            lambda: vfs.rename(d, lost[0], e, b"moved", 0, CTX),
        ):
            with pytest.raises(CorruptError):
                await act()
            assert await lookup(vfs, b"e/" + lost[0]) == other
            assert vfs.live.broken is None
        await still_saves(vfs, b"between")
        await overwrite(vfs, await lookup(vfs, b"d/" + whole[0]), b"new")
        assert committed(vfs, b"d/" + whole[0]) == b"new"
        await vfs.mkdir(d, b"sub of d", 0o755, CTX)
        await still_saves(vfs, b"after")
    async with open_vfs(path, opener=opener(disk)) as vfs:
        assert await contents(vfs, await lookup(vfs, b"e/after"), 5) == b"saved"
        assert await contents(vfs, await lookup(vfs, b"d/" + whole[0]), 3) == b"new"


async def test_p7_a_rename_that_is_a_commit_point(path: Path, disk: MemoryDisk) -> None:
    """The target cannot be read: nothing was moved, and what is pending is as it was."""
    lost, _ = damage_names(disk)
    async with open_vfs(path, opener=opener(disk)) as vfs:
        d = await lookup(vfs, b"d")
        fh, ino = await new(vfs, b"f")
        await vfs.write(fh, 0, b"pending")
        before = newest(vfs)
        with pytest.raises(CorruptError):
            await vfs.rename(ROOT_INO, b"f", d, lost[0], 0, CTX)
        assert newest(vfs) == before
        assert await lookup(vfs, b"f") == ino
        await still_saves(vfs, b"elsewhere")
        assert committed(vfs, b"f") is None
        await close(vfs, fh)
        assert committed(vfs, b"f") == b"pending"


async def test_p7_damage_under_a_file_being_made(path: Path, disk: MemoryDisk) -> None:
    """It was made while its place could be read; at its commit point that is damaged.  At the end the
    other files are saved all the same."""
    async with open_vfs(path, opener=opener(disk), clean=False) as vfs:
        d = await lookup(vfs, b"d")
        fh, ino = await new(vfs, b"fresh", parent=d)
        await vfs.write(fh, 0, b"fresh")
        node = vfs.live.node(ino)
        assert node.fresh is not None
        leaf = leaf_of(vfs.store, dentry_key(d, node.fresh.cookie))
        flip(disk, leaf.offset + 20)
        vfs.store.nodes.forget(leaf.offset)
        await save(vfs, b"f", b"f")
        for _ in range(2):
            with pytest.raises(CorruptError):
                await vfs.flush(fh)
            await still_saves(vfs, b"saved %d" % newest(vfs))
        assert await contents(vfs, ino, 5) == b"fresh"
        other, _ = await new(vfs, b"other")
        await vfs.write(other, 0, b"other")
        await vfs.symlink(ROOT_INO, b"link", b"target", CTX)
        with pytest.raises((OSError, CommitfsError)):
            await vfs.close()
        assert committed(vfs, b"other") == b"other"
        assert await vfs.readlink(await lookup(vfs, b"link")) == b"target"
        assert not vfs.live.staged
        assert vfs.store.durable_id == newest(vfs)


async def test_p7_a_damaged_long_value_is_in_nobodys_way(path: Path) -> None:
    """An extended attribute too long for a node is damaged: it cannot be read, its file can be
    read and removed, and saving goes on."""
    value = struct.pack("<I", 0x5AFE) * 500
    disk = MemoryDisk(path.read_bytes())
    async with open_vfs(path, opener=opener(disk)) as vfs:
        ino = await save(vfs, b"f", b"f")
        await vfs.setxattr(ino, b"user.long", value, CTX)
        await vfs.mkdir(ROOT_INO, b"e", 0o755, CTX)
    flip(disk, bytes(disk.cache).index(value) + 1)
    async with open_vfs(path, opener=opener(disk)) as vfs:
        ino = await lookup(vfs, b"f")
        with pytest.raises(CorruptError):
            await vfs.getxattr(ino, b"user.long", CTX)
        assert await contents(vfs, ino, 1) == b"f"
        opened = await vfs.open(ino, os.O_RDONLY, CTX)
        await vfs.unlink(ROOT_INO, b"f", CTX)
        assert (await vfs.lookup(ROOT_INO, b"f", CTX)).ino == 0
        assert await vfs.read(opened.fh, 0, 10) == b"f"
        await still_saves(vfs, b"g")
        await vfs.release(opened.fh)


async def test_p7_damaged_data_can_be_replaced_and_removed(path: Path) -> None:
    one, two = b"\1" * 70_000, b"\2" * 70_000
    disk = MemoryDisk(path.read_bytes())
    async with open_vfs(path, opener=opener(disk)) as vfs:
        await vfs.mkdir(ROOT_INO, b"e", 0o755, CTX)
        for name, data in ((b"same", one), (b"other", two), (b"gone", b"\3" * 70_000)):
            await save(vfs, name, data)
    for byte in (b"\1", b"\2", b"\3"):
        flip(disk, bytes(disk.cache).index(byte * 1000) + 500)
    async with open_vfs(path, opener=opener(disk)) as vfs:
        same, other, gone = [await lookup(vfs, name) for name in (b"same", b"other", b"gone")]
        for ino in (same, other, gone):
            with pytest.raises(CorruptError):
                await contents(vfs, ino, 70_000)
        part = (await vfs.open(other, os.O_RDWR, CTX)).fh
        await vfs.write(part, 69_990, b"the end...")
        await close(vfs, part)
        part = (await vfs.open(other, os.O_RDONLY, CTX)).fh
        assert await vfs.read(part, 65_536, 70_000) == two[65_536:69_990] + b"the end..."
        with pytest.raises(CorruptError):
            await vfs.read(part, 0, 10)
        await overwrite(vfs, same, one)
        assert committed(vfs, b"same") == one
        await overwrite(vfs, other, one)
        assert committed(vfs, b"other") == one
        await vfs.unlink(ROOT_INO, b"gone", CTX)
        await still_saves(vfs, b"g")
        assert committed(vfs, b"gone") is None


async def test_p7_a_damaged_node_of_a_large_file(path: Path) -> None:
    """Which bytes it consists of is lost in the middle: it cannot be replaced or removed under its name,
    but moved out of the way, and what is around it is as ever."""
    disk = MemoryDisk(path.read_bytes())
    data = os.urandom(20 << 20)
    async with open_vfs(path, opener=opener(disk)) as vfs:
        await vfs.mkdir(ROOT_INO, b"e", 0o755, CTX)
        big = await save_in_parts(vfs, b"big", data)
    store = Store.open("memory", opener=opener(disk))
    leaf = leaf_of(store, extent_key(big, 10 << 20))
    assert leaf not in (leaf_of(store, extent_key(big, 0)), leaf_of(store, extent_key(big, 20 << 20)))
    store.close()
    flip(disk, leaf.offset + 20)
    async with open_vfs(path, opener=opener(disk)) as vfs:
        opened = (await vfs.open(big, os.O_RDONLY, CTX)).fh
        assert await vfs.read(opened, 0, 1000) == data[:1000]
        with pytest.raises(CorruptError):
            await vfs.read(opened, 10 << 20, 1000)
        await vfs.release(opened)
        with pytest.raises(CorruptError):
            await vfs.unlink(ROOT_INO, b"big", CTX)
        await vfs.rename(ROOT_INO, b"big", ROOT_INO, b"big.damaged", 0, CTX)
        await save(vfs, b"big", b"new")
        assert committed(vfs, b"big") == b"new"
        await still_saves(vfs, b"after")


async def save_in_parts(vfs: Vfs, name: bytes, data: bytes) -> int:
    fh, ino = await new(vfs, name)
    for at in range(0, len(data), 1 << 17):
        await vfs.write(fh, at, data[at : at + (1 << 17)])
    await close(vfs, fh)
    return ino


async def test_p7_a_tree_whose_first_node_is_damaged_is_served_for_reading(path: Path) -> None:
    """The free inode numbers are in it, with the root's inode: history is there all the same."""
    disk = MemoryDisk(path.read_bytes())
    async with open_vfs(path, opener=opener(disk)) as vfs:
        await save(vfs, b"f", b"f")
        await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
        await vfs.settle()
        root = vfs.store.head
        assert root is not None
    flip(disk, root.root_offset + 20)
    async with open_vfs(path, opener=opener(disk), clean=False) as vfs:
        with pytest.raises(CorruptError):
            await vfs.getattr(ROOT_INO, CTX)
        old = await vfs.lookup(commit_root(2), b"f", CTX)
        assert await vfs.read((await vfs.open(old.ino, os.O_RDONLY, CTX)).fh, 0, 10) == b"f"


async def test_a_damaged_directory_inode(path: Path, disk: MemoryDisk) -> None:
    """The node with the inode of e's subdirectory: what needs it fails, d is in use as ever."""
    store = Store.open("memory", opener=opener(disk))
    tree = store.tree(store.head)
    e = find_dentry(tree, ROOT_INO, b"e")
    sub = find_dentry(tree, e[1].ino, b"sub") if e else None
    assert sub is not None
    leaf = leaf_of(store, inode_key(sub[1].ino))
    d = find_dentry(tree, ROOT_INO, b"d")
    assert d is not None
    assert leaf != leaf_of(store, inode_key(d[1].ino)), "the two directories share a node"
    store.close()
    flip(disk, leaf.offset + 20)
    async with open_vfs(path, opener=opener(disk)) as vfs:
        with pytest.raises(CorruptError):
            await vfs.lookup(await lookup(vfs, b"e"), b"sub", CTX)
        await save(vfs, b"new", b"new", parent=await lookup(vfs, b"d/sub"))
        assert committed(vfs, b"d/sub/new") == b"new"
        assert vfs.live.broken is None


async def test_nodes_in_memory_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_CLEAN", 4)
    async with open_vfs(path) as vfs:
        for n in range(20):
            await vfs.mkdir(ROOT_INO, b"d%d" % n, 0o755, CTX)
        assert len(vfs.live.clean) <= 4
        for n in range(20):
            await save(vfs, b"f%d" % n, b"f")
        assert len(vfs.live.clean) <= 4
        for n in range(20):
            assert (await vfs.getattr(await lookup(vfs, b"d%d" % n), CTX)).nlink == 2
            assert await contents(vfs, await lookup(vfs, b"f%d" % n), 1) == b"f"


async def test_numbers_of_a_directory_dropped_from_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file unlinked while open was in no commit, nor was its number; it is taken all the same."""
    monkeypatch.setattr(live, "MAX_CLEAN", 4)
    disk = MemoryDisk(path.read_bytes())
    async with open_vfs(path, opener=opener(disk)) as vfs:
        d = (await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)).ino
        others = [(await vfs.mkdir(ROOT_INO, b"%d" % n, 0o755, CTX)).ino for n in range(10)]
    async with open_vfs(path, opener=opener(disk)) as vfs:
        tmp, tmp_ino = await new(vfs, b"tmp", parent=d)
        await vfs.write(tmp, 0, b"of tmp")
        await vfs.unlink(d, b"tmp", CTX)
        for ino in others:
            await vfs.getattr(ino, CTX)
        assert d not in vfs.live.clean
        other, other_ino = await new(vfs, b"other", parent=d)
        assert other_ino != tmp_ino
        await vfs.write(other, 0, b"of other")
        assert await vfs.read(tmp, 0, 10) == b"of tmp"
        await close(vfs, other)
        await close(vfs, tmp)
        assert committed(vfs, b"d/other") == b"of other"
        with pytest.raises(FsError) as caught:
            await vfs.rmdir(ROOT_INO, b"d", CTX)
        assert caught.value.errno == errno.ENOTEMPTY
        assert (await vfs.getattr(d, CTX)).size == 1
    store = Store.open("memory", opener=opener(disk))
    assert [*check_store(store), *check_trees(store)] == []
    store.close()


async def test_more_links_than_names_is_an_error_of_that_file_alone(path: Path) -> None:
    """L4: it is seen before anything is changed."""
    async with open_vfs(path) as vfs:
        ino = await save(vfs, b"f", b"contents")
        node = vfs.live.node(ino)
        node.attr = node.attr._replace(nlink=3)
        vfs.live.save(node)
        await vfs.settle()
        with pytest.raises(CorruptError, match="more links than names"):
            await vfs.unlink(ROOT_INO, b"f", CTX)
        assert vfs.live.broken is None
        await save(vfs, b"g", b"other")
        assert committed(vfs, b"g") == b"other"
        assert committed(vfs, b"f") == b"contents"
