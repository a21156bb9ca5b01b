"""salvage: every readable commit in a new store, with its id; what is damaged is left out and told."""

import os
import random
import stat
from pathlib import Path

import pytest
import trio

from commitfs.errors import CorruptError, FormatError, UsageError
from commitfs.format.keys import ROOT_INO
from commitfs.format.node import NO_ROOT
from commitfs.format.record import Record
from commitfs.store.check import check_store
from commitfs.store.make import make_file, new_image
from commitfs.store.puretre2 import EarlierWriter
from commitfs.store.salvage import commits_in, open_damaged
from commitfs.store.store import Store
from commitfs.vfs import salvage as module
from commitfs.vfs.check import check_trees
from commitfs.vfs.history import facts
from commitfs.vfs.salvage import Loss, Salvaged, salvage
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.versions import changes_of
from commitfs.vfs.vfs import Vfs
from tests.support.damage import view_of
from tests.support.world import CTX, committed, lookup, open_vfs, save, save_again
from tests.torture.vfs_model import Walk


def run(path: Path, new: Path) -> tuple[Salvaged, list[Loss]]:
    lost: list[Loss] = []
    before = path.read_bytes()
    source = open_damaged(path)
    try:
        done = salvage(source, str(new), lost=lost.append)
    finally:
        source.close()
    assert path.read_bytes() == before, "the damaged store was written to"
    store = Store.open(new)
    assert [*check_store(store), *check_trees(store)] == []
    store.close()
    return done, lost


def hurt(path: Path, *offsets: int) -> None:
    with path.open("r+b") as file:
        for offset in offsets:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x40]))


def record_of(path: Path, commit: int) -> Record:
    store = Store.open(path)
    try:
        return store.record(commit)
    finally:
        store.close()


async def saves(path: Path) -> None:
    """Commits 2 to 7: f is `one` to `four`, g is there from 5 on, d/h from 6 on."""
    async with open_vfs(path) as vfs:
        for data in (b"one", b"two", b"three"):
            await save_again(vfs, ROOT_INO, b"f", data * 200)
        await save_again(vfs, ROOT_INO, b"g", b"of g" * 200)
        await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
        await save(vfs, b"h", b"of h" * 200, parent=await lookup(vfs, b"d"))
        await save_again(vfs, ROOT_INO, b"f", b"four" * 200)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "hurt"
    trio.run(saves, path)
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def read(new: Path, commit: int, name: bytes) -> bytes:
    store = Store.open(new)
    try:
        snapshot = Snapshot(store, store.record(commit))
        return snapshot.read(snapshot.resolve(name), 0, 1 << 20)
    finally:
        store.close()


@pytest.mark.parametrize("seed", [201, 202])
def test_a_sound_store_is_copied_as_it_is(tmp_path: Path, new: Path, seed: int) -> None:
    path = tmp_path / "store"
    trio.run(Walk(seed).run, path, 250, 250)
    done, lost = run(path, new)
    old, copied = Store.open(path), Store.open(new)
    assert lost == []
    assert done == (old.durable_id, 0, 0, 1, old.durable_id)
    for record in old.records():
        there = copied.record(record.id)
        assert (there.time_ns, there.parent_id) == (record.time_ns, record.parent_id)
        assert facts(copied, there) == facts(old, record)
        assert view_of(copied, there) == view_of(old, record)
    assert copied.published_end <= old.published_end + 4096 * 8, "what commits share is stored once"
    old.close()
    copied.close()


def test_a_commit_whose_record_is_lost(path: Path, new: Path) -> None:
    hurt(path, record_of(path, 3).offset + 20)
    done, lost = run(path, new)
    assert done == Salvaged(whole=6, in_part=0, lost=1, oldest=1, newest=7)
    assert [(loss.commit, loss.path) for loss in lost] == [(3, b"")]
    store = Store.open(new)
    stand_in, after = store.record(3), store.record(4)
    assert stand_in.root == NO_ROOT
    assert after.parent_id == 2
    made = facts(store, stand_in)
    assert made is not None
    assert [(change.op, change.path) for change in made.changes] == [("lost", b"")]
    assert [record.id for record in changes_of(store, b"f")] == [7, 4, 2], "it is in nobody's way"
    assert [record.id for record in changes_of(store, b"d")] == [6]
    store.close()
    assert read(new, 4, b"f") == b"three" * 200


def test_p7_a_file_with_damaged_bytes_is_left_out_until_it_is_whole_again(path: Path, new: Path) -> None:
    hurt(path, path.read_bytes().index(b"three" * 200) + 500)
    done, lost = run(path, new)
    assert (done.whole, done.in_part, done.lost) == (6, 1, 0)
    assert [(loss.commit, loss.path) for loss in lost] == [(4, b"f")]
    store = Store.open(new)
    assert [b"f" in view_of(store, store.record(commit))[0] for commit in range(1, 8)] == [
        False, True, True, False, False, False, True,
    ]  # fmt: skip
    made = facts(store, store.record(4))
    assert made is not None
    assert [(change.op, change.path) for change in made.changes] == [("lost", b"f"), ("write", b"f")]
    assert [record.id for record in changes_of(store, b"f")] == [7, 4, 3, 2]
    store.close()


def test_the_new_store_is_mounted_and_written_to(path: Path, new: Path) -> None:
    hurt(path, record_of(path, 5).offset, path.read_bytes().index(b"four" * 200))

    async def go_on() -> None:
        async with open_vfs(new) as vfs:
            assert isinstance(vfs, Vfs)
            await save_again(vfs, ROOT_INO, b"f", b"five")
            await vfs.mkdir(ROOT_INO, b"e", 0o755, CTX)
            await save(vfs, b"i", b"i", parent=await lookup(vfs, b"e"))
            assert committed(vfs, b"f") == b"five"
            assert committed(vfs, b"d/h") == b"of h" * 200

    run(path, new)
    trio.run(go_on)
    store = Store.open(new)
    assert [*check_store(store), *check_trees(store)] == []
    assert store.durable_id == 9
    store.close()


def test_the_first_commits_are_gone(path: Path, new: Path) -> None:
    """Ids stay; the store begins with the first that is left, with either slot lost too."""
    fourth = record_of(path, 4)
    with path.open("r+b") as file:
        file.write(bytes(fourth.offset))
    done, lost = run(path, new)
    assert (done.oldest, done.newest, done.lost) == (4, 7, 3)
    assert [loss.commit for loss in lost] == [1, 2, 3]
    image = new.read_bytes()
    for slot in (0, 4096):
        new.write_bytes(image[:slot] + bytes(512) + image[slot + 512 :])
        store = Store.open(new, writable=True)
        assert (store.oldest_id, store.next_id) == (4, 8)
        assert [record.id for record in store.records()] == [7, 6, 5, 4]
        assert list(check_trees(store)) == []
        store.close()


def test_a_store_cut_below_its_published_end(path: Path, new: Path) -> None:
    os.truncate(path, record_of(path, 6).offset + 300)
    with pytest.raises(CorruptError, match="commitfs salvage"):
        Store.open(path)
    done, lost = run(path, new)
    assert (done.newest, done.whole) == (5, 5)
    assert {loss.commit for loss in lost} == {6, 7}


def test_a_damaged_long_attribute_leaves_the_file(tmp_path: Path, new: Path) -> None:
    path = tmp_path / "hurt"
    value = random.Random(1).randbytes(3000)

    async def build() -> None:
        async with open_vfs(path) as vfs:
            ino = await save(vfs, b"f", b"contents")
            await vfs.setxattr(ino, b"user.long", value, CTX)
            await vfs.setxattr(ino, b"user.short", b"short", CTX)

    trio.run(build)
    hurt(path, path.read_bytes().index(value) + 9)
    done, lost = run(path, new)
    assert (done.in_part, [loss.path for loss in lost]) == (1, [b"f"])
    store = Store.open(new)
    snapshot = Snapshot(store, store.head)
    ino = snapshot.resolve(b"f")
    assert snapshot.read(ino, 0, 100) == b"contents"
    assert snapshot.xattrs(ino) == {b"user.short": b"short"}
    store.close()


def test_memory_is_bounded_and_large_commits_are_staged(
    tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a commit's bytes may be is staged; a first guess that is too low is made good."""
    path = tmp_path / "big"
    data = random.Random(2).randbytes(7 << 20)
    trio.run(_save_one, path, data)
    monkeypatch.setattr(module._Salvage, "_estimate", lambda self, record: 20_000)
    done, lost = run(path, new)
    assert (done.whole, lost) == (2, [])
    store = Store.open(new)
    assert max(record.length for record in store.records()) <= 5 << 20
    store.close()
    assert read_all(new, b"big") == data


async def _save_one(path: Path, data: bytes) -> None:
    async with open_vfs(path) as vfs:
        await save_again(vfs, ROOT_INO, b"big", data)


def read_all(new: Path, name: bytes) -> bytes:
    store = Store.open(new)
    snapshot = Snapshot(store, store.head)
    data = snapshot.read(snapshot.resolve(name), 0, 1 << 30)
    store.close()
    return data


def test_a_store_of_the_earlier_format(tmp_path: Path, new: Path) -> None:
    made = tmp_path / "made"
    trio.run(_save_one, made, b"contents")
    image = made.read_bytes()
    path = tmp_path / "earlier"
    make_file(str(path), new_image(8, earlier=True))
    writer = EarlierWriter(str(path))
    writer.commit([b"no tree"])
    writer.close()
    source = open_damaged(path)
    with pytest.raises(CorruptError, match="not one commit"):
        salvage(source, str(new), lost=lambda loss: None)
    assert not new.exists()
    assert list(tmp_path.glob(".commitfs*")) == []
    source.close()
    assert made.read_bytes() == image


def test_nothing_is_overwritten(path: Path, new: Path) -> None:
    new.write_bytes(b"mine")
    source = open_damaged(path)
    with pytest.raises(UsageError, match="exists already"):
        salvage(source, str(new), lost=lambda loss: None)
    source.close()
    assert new.read_bytes() == b"mine"


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"some text " * 5000, bytes(100_000)):
        (tmp_path / "text").write_bytes(data)
        with pytest.raises(FormatError, match="nothing of a store"):
            open_damaged(tmp_path / "text")


def test_progress_is_told(path: Path, new: Path) -> None:
    told: list[tuple[int, int]] = []
    source = open_damaged(path)
    salvage(source, str(new), lost=lambda loss: None, progress=lambda at, end: told.append((at, end)))
    assert told == sorted(told)
    assert len(told) == 7
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    source.close()


def test_a_store_inside_a_store_is_not_taken_for_it(tmp_path: Path, path: Path, new: Path) -> None:
    """Whole records of another store, in a file's contents, beside damage."""
    outer = tmp_path / "outer"
    trio.run(_save_one, outer, path.read_bytes()[:100_000])
    hurt(outer, 0, 4096, record_of(outer, 2).offset)
    source = open_damaged(outer)
    assert [record.id for record in commits_in(source)] == [1]
    source.close()
