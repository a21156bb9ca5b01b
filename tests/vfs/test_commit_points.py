"""When a commit is made and what is in it: P1 to P4, event by event, without a mount."""

import errno
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from commitfs.errors import FsError, ReadOnlyError
from commitfs.format.keys import ROOT_INO
from commitfs.store.store import Store
from commitfs.vfs.api import SetAttr
from commitfs.vfs.history import COMMITS_INO, facts
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs
from tests.support.world import CTX, close, committed, contents, names, new, newest, open_vfs, save

USER = CTX._replace(uid=1000, gid=1000)


@pytest.fixture
async def vfs(tmp_path: Path) -> AsyncIterator[Vfs]:
    async with open_vfs(tmp_path / "store.db") as made:
        yield made


async def test_p1_close_is_one_durable_commit(vfs: Vfs) -> None:
    before = newest(vfs)
    fh, _ = await new(vfs, b"f")
    await vfs.write(fh, 0, b"one")
    assert newest(vfs) == before
    await vfs.flush(fh)
    assert newest(vfs) == before + 1 == vfs.store.durable_id
    await vfs.release(fh)
    assert newest(vfs) == before + 1
    assert committed(vfs, b"f") == b"one"


async def test_p1_every_close_with_bytes_counts(vfs: Vfs) -> None:
    """A child that inherited the descriptor ends between two writes."""
    fh, _ = await new(vfs, b"f")
    before = newest(vfs)
    await vfs.write(fh, 0, b"a")
    await vfs.flush(fh)
    await vfs.write(fh, 1, b"b")
    await vfs.flush(fh)
    await vfs.flush(fh)
    await vfs.release(fh)
    assert newest(vfs) == before + 2
    assert committed(vfs, b"f", before + 1) == b"a"
    assert committed(vfs, b"f") == b"ab"


async def test_p1_two_writers_make_one_commit_each(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"..")
    one = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
    two = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
    before = newest(vfs)
    await vfs.write(one, 0, b"1")
    await vfs.write(two, 1, b"2")
    await close(vfs, one)
    assert newest(vfs) == before + 1
    assert committed(vfs, b"f") == b"12", "a reader would have seen both"
    await close(vfs, two)
    assert newest(vfs) == before + 2


async def test_p2_closing_a_reader_is_no_commit_point(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"old")
    writer = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
    reader = (await vfs.open(ino, os.O_RDONLY, CTX)).fh
    await vfs.write(writer, 0, b"new")
    before = newest(vfs)
    await close(vfs, reader)
    assert newest(vfs) == before
    assert committed(vfs, b"f") == b"old"


async def test_p2_another_files_commit_keeps_the_old_contents(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"old contents")
    fh = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
    await vfs.write(fh, 0, b"half")
    await save(vfs, b"g", b"other")
    assert committed(vfs, b"f") == b"old contents"
    attr = Snapshot(vfs.store, vfs.store.head).attr(ino)
    assert attr.size == 12
    assert await contents(vfs, ino, 4) == b"half"


async def test_p2_a_shell_flushes_before_it_writes(vfs: Vfs) -> None:
    """open with O_TRUNC, dup, close, write, close: one commit, never an empty file."""
    ino = await save(vfs, b"f", b"1\n")
    before = newest(vfs)
    fh = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
    await vfs.flush(fh)
    assert newest(vfs) == before
    await vfs.write(fh, 0, b"22\n")
    await close(vfs, fh)
    assert newest(vfs) == before + 1
    assert committed(vfs, b"f") == b"22\n"


async def test_p2_truncation_alone_is_committed_at_release(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"123")
    before = newest(vfs)
    fh = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
    await vfs.flush(fh)
    assert newest(vfs) == before
    await vfs.release(fh)
    assert newest(vfs) == before + 1
    assert committed(vfs, b"f") == b""


async def test_p2_a_late_release_does_not_commit_the_next_programs_truncation(vfs: Vfs) -> None:
    """RELEASE is asynchronous: the next open with O_TRUNC may overtake it."""
    ino = await save(vfs, b"f", b"0")
    for number in range(3):
        first = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
        await vfs.write(first, 0, b"%d" % number)
        await vfs.flush(first)
        before = newest(vfs)
        second = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
        await vfs.release(first)
        assert newest(vfs) == before
        assert committed(vfs, b"f") == b"%d" % number
        await vfs.write(second, 0, b"next")
        await close(vfs, second)
        assert newest(vfs) == before + 1


async def test_p1_files_made_and_not_released_are_in_the_last_commits(tmp_path: Path) -> None:
    """The kernel drops the RELEASEs it has not sent when it unmounts."""
    async with open_vfs(tmp_path / "store.db") as vfs:
        for number in range(20):
            fh, _ = await new(vfs, b"f%d" % number)
            await vfs.flush(fh)
    async with open_vfs(tmp_path / "store.db") as vfs:
        assert len(await names(vfs, ROOT_INO)) == 20


async def test_p2_pages_written_after_the_last_close_are_committed_at_release(vfs: Vfs) -> None:
    """A shared mapping outlives its descriptor: WRITE comes between FLUSH and RELEASE."""
    ino = await save(vfs, b"f", b"123")
    fh = (await vfs.open(ino, os.O_RDWR, CTX)).fh
    await vfs.flush(fh)
    await vfs.write(fh, 0, b"9")
    before = newest(vfs)
    await vfs.release(fh)
    assert newest(vfs) == before + 1
    assert committed(vfs, b"f") == b"923"


async def test_p2_truncate_by_path(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"12345")
    before = newest(vfs)
    await vfs.setattr(ino, SetAttr(size=2), None, CTX)
    assert newest(vfs) == before + 1 == vfs.store.durable_id
    assert committed(vfs, b"f") == b"12"
    fh = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
    await vfs.setattr(ino, SetAttr(size=1), None, CTX)
    assert newest(vfs) == before + 1, "it waits for the writer's close"
    await close(vfs, fh)
    assert newest(vfs) == before + 2
    assert committed(vfs, b"f") == b"1"


async def test_p2_each_write_through_o_sync_is_a_commit(vfs: Vfs) -> None:
    fh, _ = await new(vfs, b"f", os.O_WRONLY | os.O_SYNC)
    before = newest(vfs)
    for number in range(3):
        await vfs.write(fh, number, b"x")
        assert newest(vfs) == before + 1 + number == vfs.store.durable_id
    await close(vfs, fh)
    assert newest(vfs) == before + 3


async def test_p2_fsync_then_close_is_one_commit(vfs: Vfs) -> None:
    fh, _ = await new(vfs, b"f")
    before = newest(vfs)
    await vfs.write(fh, 0, b"x")
    await vfs.fsync(fh, False)
    await vfs.fsync(fh, True)
    await close(vfs, fh)
    assert newest(vfs) == before + 1


@pytest.mark.parametrize("act", ["rename", "link"])
async def test_p2_rename_and_link_of_pending_contents_are_commit_points(vfs: Vfs, act: str) -> None:
    fh, ino = await new(vfs, b"tmp")
    await vfs.write(fh, 0, b"all of it")
    before = newest(vfs)
    if act == "rename":
        await vfs.rename(ROOT_INO, b"tmp", ROOT_INO, b"final", 0, CTX)
    else:
        await vfs.link(ino, ROOT_INO, b"final", CTX)
    assert newest(vfs) == before + 1 == vfs.store.durable_id
    assert committed(vfs, b"final") == b"all of it"
    assert committed(vfs, b"tmp") == (None if act == "rename" else b"all of it")
    await close(vfs, fh)
    assert newest(vfs) == before + 1, "nothing was written since"


async def test_p2_rename_of_a_closed_file_is_staged(vfs: Vfs) -> None:
    await save(vfs, b"a", b"x")
    before = newest(vfs)
    await vfs.rename(ROOT_INO, b"a", ROOT_INO, b"b", 0, CTX)
    assert newest(vfs) == before


async def test_p2_a_refused_rename_changes_nothing(vfs: Vfs) -> None:
    fh, _ = await new(vfs, b"tmp")
    await vfs.write(fh, 0, b"x")
    await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    await vfs.settle()
    before = newest(vfs)
    with pytest.raises(FsError) as caught:
        await vfs.rename(ROOT_INO, b"tmp", ROOT_INO, b"d", 0, CTX)
    assert caught.value.errno == errno.EISDIR
    assert newest(vfs) == before
    await save(vfs, b"g", b"the log goes on")
    assert committed(vfs, b"tmp") is None


async def test_p2_attributes_set_while_pending_are_in_the_same_commit(vfs: Vfs) -> None:
    fh, ino = await new(vfs, b"f")
    await vfs.write(fh, 0, b"x")
    when = 978_307_200_123_456_789
    await vfs.setattr(ino, SetAttr(mode=0o600, mtime_ns=when, atime_ns=when), None, CTX)
    await vfs.setxattr(ino, b"user.a", b"v", CTX)
    before = newest(vfs)
    await close(vfs, fh)
    snapshot = Snapshot(vfs.store, vfs.store.head)
    attr = snapshot.attr(ino)
    assert newest(vfs) == before + 1
    assert (stat.S_IMODE(attr.mode), attr.mtime_ns, attr.atime_ns) == (0o600, when, when)
    assert snapshot.xattrs(ino) == {b"user.a": b"v"}
    assert not vfs.live.staged


async def test_p4_size_and_times_wait_with_the_contents_but_the_mode_does_not(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"123")
    old = Snapshot(vfs.store, vfs.store.head).attr(ino)
    fh = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
    await vfs.write(fh, 3, b"456")
    await vfs.setattr(ino, SetAttr(mode=0o400), None, CTX)
    await vfs.settle()
    attr = Snapshot(vfs.store, vfs.store.head).attr(ino)
    assert (attr.size, attr.mtime_ns, stat.S_IMODE(attr.mode)) == (3, old.mtime_ns, 0o400)
    assert (await vfs.getattr(ino, CTX)).size == 6


async def test_p4_staged_changes_go_with_the_next_commit_of_anyone(vfs: Vfs) -> None:
    await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    await vfs.symlink(ROOT_INO, b"l", b"d", CTX)
    before = newest(vfs)
    await save(vfs, b"f", b"x")
    assert newest(vfs) == before + 1
    assert Snapshot(vfs.store, vfs.store.head).resolve(b"l") == Snapshot(vfs.store, vfs.store.head).resolve(
        b"d"
    )


async def test_p4_staged_changes_settle_in_time(tmp_path: Path) -> None:
    async with open_vfs(tmp_path / "store.db", settle=0.05) as vfs:
        before = newest(vfs)
        for number in range(20):
            await vfs.mkdir(ROOT_INO, b"d%d" % number, 0o755, CTX)
        with trio.fail_after(10):
            while newest(vfs) == before:
                await trio.sleep(0.01)
        assert newest(vfs) == before + 1
        await trio.sleep(0.2)
        assert newest(vfs) == before + 1, "nothing staged, nothing committed"


async def test_p4_settle_0_makes_each_change_a_durable_commit(tmp_path: Path) -> None:
    async with open_vfs(tmp_path / "store.db", settle=0) as vfs:
        before = newest(vfs)
        await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
        assert newest(vfs) == before + 1 == vfs.store.durable_id
        await vfs.rmdir(ROOT_INO, b"d", CTX)
        assert newest(vfs) == before + 2 == vfs.store.durable_id


async def test_p4_a_file_never_at_a_commit_point_is_in_no_commit(vfs: Vfs) -> None:
    before = newest(vfs)
    fh, _ = await new(vfs, b"f")
    await vfs.write(fh, 0, b"x")
    await vfs.unlink(ROOT_INO, b"f", CTX)
    assert await vfs.read(fh, 0, 10) == b"x"
    await close(vfs, fh)
    await vfs.settle()
    assert newest(vfs) == before


async def test_p4_a_new_file_open_while_its_directory_is_committed(vfs: Vfs) -> None:
    """P3: the directory's entry count and the names in it agree in every commit."""
    attr = await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    opened, _ = await vfs.create(attr.ino, b"f", stat.S_IFREG | 0o644, os.O_WRONLY, CTX)
    with pytest.raises(FsError) as caught:
        await vfs.rmdir(ROOT_INO, b"d", CTX)
    assert caught.value.errno == errno.ENOTEMPTY
    await vfs.settle()
    snapshot = Snapshot(vfs.store, vfs.store.head)
    assert snapshot.attr(attr.ino).size == 0
    assert list(snapshot.entries(attr.ino)) == []
    assert [name for name, _ in await names(vfs, attr.ino)] == [b"f"]
    await close(vfs, opened.fh)
    snapshot = Snapshot(vfs.store, vfs.store.head)
    assert snapshot.attr(attr.ino).size == 1


async def test_p4_an_access_time_alone_never_commits(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"x")
    before = newest(vfs)
    await vfs.setattr(ino, SetAttr(atime_ns=5), None, CTX)
    assert (await vfs.getattr(ino, CTX)).atime_ns == 5
    await vfs.settle()
    assert newest(vfs) == before
    await vfs.setattr(ino, SetAttr(mode=0o600), None, CTX)
    await vfs.settle()
    assert Snapshot(vfs.store, vfs.store.head).attr(ino).atime_ns == 5


async def test_p4_looking_into_history_settles(vfs: Vfs) -> None:
    await save(vfs, b"a", b"x")
    await vfs.rename(ROOT_INO, b"a", ROOT_INO, b"b", 0, CTX)
    attr = await vfs.lookup(COMMITS_INO, b"latest", CTX)
    assert not vfs.live.staged
    assert int(await vfs.readlink(attr.ino)) == newest(vfs) == vfs.store.durable_id
    assert committed(vfs, b"b") == b"x"


async def test_p4_looking_into_history_waits_for_a_release_that_is_coming(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"x")
    before = newest(vfs)
    fh = (await vfs.open(ino, os.O_WRONLY | os.O_TRUNC, CTX)).fh
    await vfs.flush(fh)
    async with trio.open_nursery() as nursery:

        async def late_release() -> None:
            await trio.sleep(0.02)
            await vfs.release(fh)

        nursery.start_soon(late_release)
        attr = await vfs.lookup(COMMITS_INO, b"latest", CTX)
        assert int(await vfs.readlink(attr.ino)) == before + 1
        assert not vfs.files.handles


async def test_p4_a_descriptor_kept_open_delays_the_observer_only_shortly(vfs: Vfs) -> None:
    fh, _ = await new(vfs, b"f")
    await vfs.flush(fh)
    with trio.fail_after(5):
        for _ in range(3):
            await vfs.lookup(COMMITS_INO, b"latest", CTX)
    await close(vfs, fh)


async def test_p5_history_refuses_every_change(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"x")
    root = (await vfs.lookup(COMMITS_INO, b"00000002", CTX)).ino
    old = (await vfs.lookup(root, b"f", CTX)).ino
    acts = [
        vfs.mkdir(root, b"d", 0o755, CTX),
        vfs.create(root, b"d", 0o644, os.O_WRONLY, CTX),
        vfs.unlink(root, b"f", CTX),
        vfs.rename(root, b"f", ROOT_INO, b"g", 0, CTX),
        vfs.rename(ROOT_INO, b"f", root, b"g", 0, CTX),
        vfs.link(old, ROOT_INO, b"g", CTX),
        vfs.link(ino, root, b"g", CTX),
        vfs.setattr(old, SetAttr(mode=0), None, CTX),
        vfs.setxattr(old, b"user.a", b"", CTX),
        vfs.open(old, os.O_WRONLY, CTX),
        vfs.open(old, os.O_RDONLY | os.O_TRUNC, CTX),
        vfs.symlink(COMMITS_INO, b"latest2", b"x", CTX),
        vfs.rmdir(COMMITS_INO, b"00000001", CTX),
        vfs.access(old, os.W_OK, CTX),
    ]
    before = newest(vfs)
    for act in acts:
        with pytest.raises(FsError) as caught:
            await act
        assert caught.value.errno == errno.EROFS
    await vfs.settle()
    assert newest(vfs) == before


@pytest.mark.parametrize("name", [b".commits", b".versions"])
async def test_reserved_names_of_the_root_are_refused(vfs: Vfs, name: bytes) -> None:
    ino = await save(vfs, b"f", b"x")
    await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    acts = [
        vfs.mkdir(ROOT_INO, name, 0o755, CTX),
        vfs.create(ROOT_INO, name, 0o644, os.O_WRONLY, CTX),
        vfs.symlink(ROOT_INO, name, b"x", CTX),
        vfs.link(ino, ROOT_INO, name, CTX),
        vfs.mknod(ROOT_INO, name, stat.S_IFIFO | 0o600, 0, CTX),
        vfs.rename(ROOT_INO, b"f", ROOT_INO, name, 0, CTX),
        vfs.rename(ROOT_INO, name, ROOT_INO, b"g", 0, CTX),
        vfs.unlink(ROOT_INO, name, CTX),
        vfs.rmdir(ROOT_INO, name, CTX),
    ]
    for act in acts:
        with pytest.raises(FsError) as caught:
            await act
        assert caught.value.errno == errno.EPERM
    below = (await vfs.lookup(ROOT_INO, b"d", CTX)).ino
    assert (await vfs.mkdir(below, name, 0o755, CTX)).ino


async def test_a_write_by_another_user_clears_set_id_bits(vfs: Vfs) -> None:
    ino = await save(vfs, b"f", b"x")
    await vfs.setattr(ino, SetAttr(mode=0o6755), None, CTX)
    told: list[int] = []
    vfs.invalidate = told.append
    fh = (await vfs.open(ino, os.O_WRONLY, USER)).fh
    await vfs.write(fh, 0, b"y")
    await close(vfs, fh)
    assert stat.S_IMODE((await vfs.getattr(ino, CTX)).mode) == 0o755
    assert told == [ino]
    await vfs.setattr(ino, SetAttr(mode=0o4755), None, CTX)
    fh = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
    await vfs.write(fh, 0, b"z")
    await close(vfs, fh)
    assert stat.S_IMODE((await vfs.getattr(ino, CTX)).mode) == 0o4755, "root keeps them"


@pytest.mark.parametrize("fresh", [True, False])
async def test_a_write_takes_file_capabilities_away(vfs: Vfs, fresh: bool) -> None:
    """Privileges given to the old contents must not go with new ones, whoever writes them."""
    fh, ino = await new(vfs, b"f")
    if not fresh:
        await vfs.write(fh, 0, b"x")
        await close(vfs, fh)
        fh = (await vfs.open(ino, os.O_WRONLY, CTX)).fh
    await vfs.setxattr(ino, b"security.capability", b"cap", CTX)
    await vfs.write(fh, 0, b"y")
    assert await vfs.listxattr(ino, CTX) == []
    await close(vfs, fh)
    assert Snapshot(vfs.store, vfs.store.head).xattrs(ino) == {}


async def test_large_contents_pass_through_a_stage(vfs: Vfs) -> None:
    """Memory stays bounded, the commit is whole, unlinked and rewritten ranges do not show."""
    data = bytes(range(256)) * 8192
    assert vfs.commits is not None
    fh, ino = await new(vfs, b"big")
    for at in range(0, 6 << 20, len(data)):
        await vfs.write(fh, at, data)
        assert vfs.commits.memory <= 2 << 20
    await vfs.write(fh, 100_000, b"patched")
    right = bytearray(data * 3)
    right[100_000:100_007] = b"patched"
    assert await contents(vfs, ino, len(right)) == right
    await close(vfs, fh)
    assert committed(vfs, b"big") == bytes(right)
    assert vfs.commits.memory == 0


async def test_unlinking_a_file_on_its_way_to_a_stage_keeps_the_count_of_memory(vfs: Vfs) -> None:
    commits = vfs.commits
    assert commits is not None
    fh, ino = await new(vfs, b"big")
    async with trio.open_nursery() as nursery:
        await vfs.write(fh, 0, bytes(3 << 20))
        nursery.start_soon(vfs.write, fh, 3 << 20, bytes(5))
        await trio.testing.wait_all_tasks_blocked()
        node = vfs.files.handles[fh].node
        assert node.spilling
        await vfs.unlink(ROOT_INO, b"big", CTX)
    assert commits.memory == (node.pending.memory if node.pending is not None else 0)
    assert await vfs.read(fh, 0, 4 << 20) == bytes((3 << 20) + 5)
    await close(vfs, fh)
    vfs.forget([(ino, 1)])
    assert commits.memory == 0
    assert ino not in vfs.live.nodes


async def test_facts_name_who_and_what(vfs: Vfs) -> None:
    await vfs.mkdir(ROOT_INO, b"d", 0o755, CTX)
    await save(vfs, b"f", b"xyz")
    assert vfs.store.head is not None
    made = facts(vfs.store, vfs.store.head)
    assert made is not None
    assert [(change.op, change.path, change.size) for change in made.changes] == [
        ("create", b"f", 3),
        ("mkdir", b"d", None),
    ]
    assert made.pid == 1
    assert made.program


async def test_times_never_go_backwards_though_the_clock_does(tmp_path: Path) -> None:
    async with open_vfs(tmp_path / "store.db") as vfs:
        clock = [2_000_000_000_000_000_000]
        vfs.live.now = lambda: clock[0]
        await save(vfs, b"a", b"x")
        clock[0] -= 86_400_000_000_000
        await save(vfs, b"b", b"x")
        assert vfs.store.head is not None
        assert vfs.store.head.time_ns == 2_000_000_000_000_000_000
        made = facts(vfs.store, vfs.store.head)
        assert made is not None
        assert made.clock_ns == clock[0]


async def test_an_unreadable_part_of_the_tree_stops_only_what_needs_it(tmp_path: Path) -> None:
    """P7: damage in one place never hides the rest, and saving goes on."""
    path = tmp_path / "store.db"
    async with open_vfs(path) as vfs:
        bad = await save(vfs, b"bad", b"B" * 5000)
        good = await save(vfs, b"good", b"G" * 5000)
        extent = vfs.store.bytes_of(vfs.store.record(2)).index(b"B" * 5000)
        offset = int(vfs.store.record(2).offset) + 128 + extent
    with open(path, "r+b") as raw:
        raw.seek(offset + 10)
        raw.write(b"X")
    async with open_vfs(path) as vfs:
        with pytest.raises(Exception, match="damaged"):
            await contents(vfs, bad, 5000)
        assert await contents(vfs, good, 5000) == b"G" * 5000
        fh = (await vfs.open(bad, os.O_WRONLY | os.O_TRUNC, CTX)).fh
        await vfs.write(fh, 0, b"B" * 5000)
        await close(vfs, fh)
        assert await contents(vfs, bad, 5000) == b"B" * 5000
        assert vfs.live.broken is None


async def test_p8_a_read_only_vfs_follows_the_writer(tmp_path: Path) -> None:
    async with open_vfs(tmp_path / "store.db") as writer:
        await save(writer, b"a", b"1")
        store = Store.open(tmp_path / "store.db")
        reader = Vfs(store, None, None)
        ino = (await reader.lookup(ROOT_INO, b"a", CTX)).ino
        assert await contents(reader, ino, 1) == b"1"
        await save(writer, b"b", b"2")
        ino = (await reader.lookup(ROOT_INO, b"b", CTX)).ino
        assert await contents(reader, ino, 1) == b"2"
        with pytest.raises((FsError, ReadOnlyError)):
            await reader.mkdir(ROOT_INO, b"d", 0o755, CTX)
        with pytest.raises((FsError, ReadOnlyError)):
            await reader.open(ino, os.O_WRONLY, CTX)
        store.close()


async def test_p8_a_file_open_in_a_reader_outlives_its_removal(tmp_path: Path) -> None:
    """P7: never zeros in place of contents."""
    async with open_vfs(tmp_path / "store.db") as writer:
        await save(writer, b"f", b"F" * 100_000)
        store = Store.open(tmp_path / "store.db")
        reader = Vfs(store, None, None)
        ino = (await reader.lookup(ROOT_INO, b"f", CTX)).ino
        fh = (await reader.open(ino, os.O_RDONLY, CTX)).fh
        await writer.unlink(ROOT_INO, b"f", CTX)
        await writer.settle()
        with pytest.raises(FsError):
            await reader.lookup(ROOT_INO, b"f", CTX)
        assert await reader.read(fh, 90_000, 10_000) == b"F" * 10_000
        store.close()


async def test_readdir_cursors_stay_put(vfs: Vfs) -> None:
    """An entry that is there all the time is listed exactly once, whatever comes and goes."""
    for number in range(600):
        await vfs.symlink(ROOT_INO, b"keep%d" % number, b"x", CTX)
    fh = await vfs.opendir(ROOT_INO, CTX)
    seen: list[bytes] = []
    cookie = 0
    turn = 0
    while batch := await vfs.readdir(fh, cookie):
        for name, _, after in batch[:50]:
            seen.append(name)
            cookie = after
        turn += 1
        await vfs.symlink(ROOT_INO, b"new%d" % turn, b"x", CTX)
        if turn > 1:
            await vfs.unlink(ROOT_INO, b"new%d" % (turn - 1), CTX)
    kept = [name for name in seen if name.startswith(b"keep")]
    assert sorted(kept) == sorted(b"keep%d" % number for number in range(600))
    assert seen[:2] == [b".", b".."]


async def test_forgotten_and_removed_inodes_leave_memory(vfs: Vfs) -> None:
    for _ in range(50):
        ino = await save(vfs, b"f", b"x")
        await vfs.unlink(ROOT_INO, b"f", CTX)
        vfs.forget([(ino, 1)])
    assert vfs.live.lookups == {}
    assert set(vfs.live.nodes) <= {ROOT_INO}
