"""The check of commits' trees: sound ones pass, and each way to be unsound is found (P3, P7)."""

import errno
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from commitfs.errors import CorruptError
from commitfs.format.extent import Extent, encode_extent
from commitfs.format.inode import Blob, Dentry, Inode, encode_dentry, encode_inode, encode_xattr
from commitfs.format.keys import (
    ROOT_INO,
    backref_key,
    cookie_base,
    dentry_key,
    extent_key,
    inode_key,
    tombstone_key,
    xattr_key,
)
from commitfs.native import crc32c
from commitfs.store.check import Finding, Severity, check_store
from commitfs.store.store import Store
from commitfs.vfs.check import check_trees
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.versions import changes_of
from tests.torture.vfs_model import Walk

DIR, FILE, LINK = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
D, F, S, E = 256, 257, 258, 512
DATA = b"some bytes of a file" * 10


class World:
    """A store whose trees are made by hand, key by key."""

    def __init__(self, path: Path) -> None:
        Store.create(str(path))
        self.store = Store.open(str(path), writable=True)
        self.tree = self.store.tree(None)
        self.inodes: dict[int, Inode] = {}

    def inode(self, ino: int, **values: object) -> None:
        """Put an inode, new or changed."""
        blank = Inode(0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        merged = {**self.inodes.get(ino, blank)._asdict(), "changed": int(self.store.next_id), **values}
        self.inodes[ino] = Inode(**merged)
        self.tree.put(inode_key(ino), encode_inode(self.inodes[ino]))

    def name(self, parent: int, name: bytes, ino: int, mode: int) -> int:
        """Put a dentry; returns its cookie."""
        cookie = cookie_base(name)
        dentry = Dentry(stat.S_IFMT(mode) >> 12, int(self.store.next_id), ino, name)
        self.tree.put(dentry_key(parent, cookie), encode_dentry(dentry))
        return cookie

    def commit(self, *data: bytes) -> list[int]:
        """Commit the tree; returns the log offsets of `data`."""
        txn = self.store.begin(self.tree.estimate() + sum(map(len, data)))
        offsets = [txn.add(part) for part in data]
        txn.finish(root=self.tree.build(txn.add), time_ns=1)
        self.store.flush()
        return offsets

    def findings(self) -> list[Finding]:
        return list(check_trees(self.store))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """/d/f with a second name /g and an xattr, a symlink /d/s, an empty directory /e."""
    world = World(tmp_path / "store")
    (data,) = world.commit(DATA)
    world.inode(ROOT_INO, mode=DIR, nlink=4, size=3)
    world.inode(D, mode=DIR, nlink=2, size=2, parent=ROOT_INO, cookie=world.name(ROOT_INO, b"d", D, DIR))
    world.inode(E, mode=DIR, nlink=2, parent=ROOT_INO, cookie=world.name(ROOT_INO, b"e", E, DIR))
    size = len(DATA)
    f = world.name(D, b"f", F, FILE)
    world.inode(F, mode=FILE, nlink=2, size=size, stored=size, parent=D, cookie=f)
    world.tree.put(extent_key(F, 0), encode_extent(Extent(size, 0, size, data, (crc32c(DATA),))))
    world.tree.put(backref_key(F, ROOT_INO, world.name(ROOT_INO, b"g", F, FILE)), b"")
    world.tree.put(xattr_key(F, b"user.a"), encode_xattr(b"value"))
    world.inode(S, mode=LINK, size=4, parent=D, cookie=world.name(D, b"s", S, LINK), target=b"d/f!")
    world.commit()
    yield world
    world.store.close()


def test_a_sound_tree_has_no_findings(world: World) -> None:
    assert world.findings() == []


def test_changes_between_sound_trees_have_none(world: World) -> None:
    """A file moved to another directory over nothing, a link removed, contents cut."""
    cookie = cookie_base(b"f")
    world.tree.delete(dentry_key(D, cookie))
    stone = Dentry(FILE >> 12, int(world.store.next_id), F, b"f")
    world.tree.put(tombstone_key(D, cookie), encode_dentry(stone))
    world.inode(D, size=1)
    world.inode(E, size=1)
    world.inode(F, parent=E, cookie=world.name(E, b"f2", F, FILE))
    world.commit()
    world.tree.delete(dentry_key(ROOT_INO, cookie_base(b"g")))
    world.tree.delete(backref_key(F, ROOT_INO, cookie_base(b"g")))
    world.inode(ROOT_INO, size=2)
    extent = Extent(5, 0, len(DATA), world_extent_offset(world), (crc32c(DATA),))
    world.tree.put(extent_key(F, 0), encode_extent(extent))
    world.inode(F, nlink=1, size=5, stored=5)
    world.commit()
    assert world.findings() == []


def world_extent_offset(world: World) -> int:
    record = world.store.record(1)
    return int(record.bytes_offset)


def loop(world: World) -> None:
    """/e moved into itself."""
    world.tree.delete(dentry_key(ROOT_INO, cookie_base(b"e")))
    world.inode(ROOT_INO, size=2, nlink=3)
    world.inode(E, size=1, nlink=3, parent=E, cookie=world.name(E, b"e", E, DIR))


def lose_file(world: World) -> None:
    """The inode of /d/f is gone, its names and contents are not."""
    world.tree.delete(inode_key(F))


def lose_name(world: World) -> None:
    world.tree.delete(dentry_key(D, cookie_base(b"s")))
    world.inode(D, size=1)


def lose_inode_alone(world: World) -> None:
    """The inode of /d/s is gone and nothing of it is left but its name."""
    world.tree.delete(inode_key(S))


def overlap(world: World) -> None:
    offset = world_extent_offset(world)
    world.tree.put(extent_key(F, 10), encode_extent(Extent(20, 0, len(DATA), offset, (crc32c(DATA),))))
    world.inode(F, stored=len(DATA) + 20)


def beyond(world: World) -> None:
    world.inode(F, size=10)


def wrong_kind(world: World) -> None:
    world.name(D, b"s", S, FILE)
    world.inode(D)


def blob_lost(world: World) -> None:
    world.tree.put(xattr_key(F, b"user.a"), encode_xattr(Blob(world_extent_offset(world), 100, 12345)))
    world.inode(F)


def unit_damaged(world: World) -> None:
    offset = world_extent_offset(world)
    world.tree.put(extent_key(F, 0), encode_extent(Extent(len(DATA), 0, len(DATA), offset, (7,))))
    world.inode(F)


def unknown_link(world: World) -> None:
    world.tree.delete(backref_key(F, ROOT_INO, cookie_base(b"g")))
    world.inode(F, nlink=1)
    world.name(ROOT_INO, b"g", F, FILE)
    world.inode(ROOT_INO)


def wrong_cookie(world: World) -> None:
    dentry = Dentry(DIR >> 12, int(world.store.next_id), E, b"e")
    world.tree.delete(dentry_key(ROOT_INO, cookie_base(b"e")))
    world.tree.put(dentry_key(ROOT_INO, 4242), encode_dentry(dentry))
    world.inode(E, cookie=4242)
    world.inode(ROOT_INO)


def stone_and_name(world: World) -> None:
    stone = Dentry(DIR >> 12, int(world.store.next_id), E, b"e")
    world.tree.put(tombstone_key(ROOT_INO, cookie_base(b"e")), encode_dentry(stone))


def dangling_backref(world: World) -> None:
    world.tree.put(backref_key(F, D, 777), b"")
    world.inode(F, nlink=3)


@pytest.mark.parametrize(
    ("break_it", "path", "message"),
    [
        (lambda w: w.inode(F, nlink=3), b"d/f", "has 2 links and says 3"),
        (lambda w: w.inode(D, nlink=3), b"d", "has 2 links and says 3"),
        (lambda w: w.inode(D, size=9), b"d", "a directory of 2 names says it has 9"),
        (lambda w: w.inode(F, stored=1), b"d/f", f"holds {len(DATA)} bytes and says 1"),
        (lambda w: w.inode(S, size=99), b"d/s", "size 99 has a target of 4 bytes"),
        (lambda w: w.inode(F, changed=1), b"d/f", "changed in this commit and says 1"),
        (lambda w: w.inode(ROOT_INO, mode=FILE), b"", "no root directory"),
        (lambda w: w.tree.put(inode_key(F), b"short"), b"", "inode value makes no sense"),
        (loop, b"<inode 512>", "the directory lies in itself"),
        (lose_file, b"", "the inode is gone, something of it is left"),
        (lose_name, b"d/s", "inode 258 is not"),
        (lose_inode_alone, b"", "the inode of a name in directory 256 is gone"),
        (overlap, b"d/f", "there twice"),
        (beyond, b"d/f", "bytes behind its size 10"),
        (wrong_kind, b"d/s", "is of another type"),
        (blob_lost, b"d/f", "an extended attribute at offset"),
        (unit_damaged, b"d/f", "data at offset"),
        (unknown_link, b"g", "does not know this name"),
        (wrong_cookie, b"e", "cookie 4242 is none of this name's"),
        (stone_and_name, b"e", "both there and deleted"),
        (dangling_backref, b"d/f", f"a link of it in directory {D} is missing"),
    ],
)
def test_what_is_wrong_is_found(
    world: World, break_it: Callable[[World], None], path: bytes, message: str
) -> None:
    break_it(world)
    world.commit()
    found = [f for f in world.findings() if f.commit == 3]
    assert any(message in f.message and path in (f.path, b"") for f in found), found


def test_each_unit_is_verified_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        world.inode(F, mtime_ns=number)
        world.commit()
    reads: list[int] = []
    read_checked = Store.read_checked

    def counting(self: Store, offset: int, length: int, crc: int, what: str = "data") -> bytes:
        reads.append(offset)
        return read_checked(self, offset, length, crc, what)

    monkeypatch.setattr(Store, "read_checked", counting)
    world.findings()
    assert len(reads) == 1


def test_damage_in_one_commit_hides_nothing_of_others(world: World, tmp_path: Path) -> None:
    head = world.store.head
    assert head is not None
    world.inode(D, nlink=3)
    world.commit()
    world.store.close()
    path = tmp_path / "store"
    image = bytearray(path.read_bytes())
    image[head.root.offset + 20] ^= 0xFF
    path.write_bytes(image)
    world.store = Store.open(str(path), writable=False)
    found = world.findings()
    assert any(f.commit == 2 and "cannot be compared" in f.message for f in found)
    assert any(f.commit == 3 for f in found)


def test_a_commit_whose_parent_is_damaged_is_checked_by_itself(world: World, tmp_path: Path) -> None:
    world.inode(D, nlink=2, mtime_ns=5)
    world.commit()
    world.inode(E, size=7)
    wrong_kind(world)
    world.commit()
    parent = world.store.record(3)
    world.store.close()
    path = tmp_path / "store"
    image = bytearray(path.read_bytes())
    image[parent.offset + 9] ^= 0xFF
    path.write_bytes(image)
    world.store = Store.open(str(path))
    found = world.findings()
    assert [f.commit for f in found if "record cannot be read" in f.message] == [3]
    assert any(f.commit == 4 and "is of another type" in f.message for f in found)
    assert not any("says it has 7" in f.message for f in found)  # counts need the parent


def test_progress_is_told(world: World) -> None:
    told: list[tuple[int, int]] = []
    list(check_trees(world.store, progress=lambda done, total: told.append((done, total))))
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_what_the_vfs_commits_is_sound(tmp_path: Path, seed: int) -> None:
    """All kinds of operations in random order, unmounts in between."""
    path = tmp_path / "store"
    walk = Walk(seed)
    trio.run(walk.run, path, 250, 50)
    store = Store.open(path)
    assert store.head is not None
    assert store.head.id > 40
    assert list(check_store(store)) == []
    assert list(check_trees(store)) == []
    store.close()


def test_no_damaged_byte_goes_unseen(tmp_path: Path) -> None:
    """P7: a bit is turned at each place in turn, up to the published end.  What is not found must be a
    byte that means nothing: one that fills up a slot's page or a stage."""
    path = tmp_path / "store"
    walk = Walk(104)
    trio.run(walk.run, path, 60, 60)
    store = Store.open(path)
    end = int(store.published_end)
    records = list(store.records())
    store.close()
    image = path.read_bytes()
    meaning = [(0, 512), (4096, 4608)] + [(r.offset, r.bytes_offset + r.length) for r in records]
    copy = tmp_path / "copy"
    checked = 0
    for lo, hi in meaning:
        for place in range(lo, min(hi, end), max((hi - lo) // 9, 1)):
            damaged = bytearray(image)
            damaged[place] ^= 1 << place % 8
            copy.write_bytes(damaged)
            store = Store.open(copy)
            found = list(check_store(store))
            store.close()
            assert found, f"the byte at {place}"
            if place >= 8192:
                assert Severity.DAMAGE in {f.severity for f in found}, f"the byte at {place}"
            checked += 1
    assert checked > 100


def test_walks_end_where_directories_lie_in_themselves(world: World) -> None:
    loop(world)
    world.name(ROOT_INO, b"e", E, DIR)
    world.commit()
    snapshot = Snapshot(world.store, world.store.head)
    with pytest.raises(CorruptError, match="itself"):
        list(snapshot.walk())


def test_the_history_of_a_directory_ends_where_others_lie_in_themselves(world: World) -> None:
    """/e/x lies in itself and changes with each commit; the question is about /d."""
    x = E + 1
    cookie = world.name(x, b"x", x, DIR)
    for turn in range(3):
        world.inode(x, mode=DIR, nlink=3, size=1, parent=x, cookie=cookie, mtime_ns=turn)
        world.commit()
    assert [record.id for record in changes_of(world.store, b"d")] == [2]


def test_ids_no_store_of_that_size_can_have_end_the_check(world: World) -> None:
    """A forged newest record says it is commit 2**60."""
    store = world.store
    assert store.log is not None
    assert store.head is not None
    store.log.head = store.head._replace(id=1 << 60)
    assert len(world.findings()) <= store.published_end // 128 + 1


def test_what_the_device_cannot_read_is_damage_of_that_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = world_extent_offset(world)
    pread = world.store.file.pread

    def failing(length: int, offset: int) -> bytes:
        if offset <= bad < offset + length:
            raise OSError(errno.EIO, "Input/output error")
        return pread(length, offset)

    monkeypatch.setattr(world.store.file, "pread", failing)
    (found,) = world.findings()
    assert (found.path, found.offset) == (b"d/f", bad)
    assert "cannot read" in found.message
