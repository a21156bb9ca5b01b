"""The store as its callers see it."""

import os
import stat
from itertools import pairwise
from pathlib import Path

import pytest

from commitfs.errors import CorruptError, FormatError, NotFoundError, ReadOnlyError, UsageError
from commitfs.format.node import NO_ROOT
from commitfs.native import crc32c
from commitfs.store.make import new_image
from commitfs.store.store import Store
from commitfs.store.txn import BYTES_LIMIT
from tests.support import stores
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import commit, filled, ids, open_store, queue


class TestCreate:
    def test_makes_a_store_without_commits(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        Store.create(path, align=512)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        store = Store.open(path)
        assert (store.head, store.align, store.next_id, store.oldest_id, store.durable_id) == (
            None,
            512,
            1,
            0,
            0,
        )
        assert list(store.records()) == []
        assert list(store.tree(store.head).scan(b"")) == []
        with pytest.raises(NotFoundError):
            store.record(1)
        with pytest.raises(NotFoundError):
            store.record_at(0)
        store.close()
        assert os.listdir(tmp_path) == ["s.db"]

    def test_never_over_what_is_there(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        path.write_bytes(b"mine")
        with pytest.raises(UsageError, match="exists"):
            Store.create(path)
        assert path.read_bytes() == b"mine"
        assert os.listdir(tmp_path) == ["s.db"]

    def test_a_name_may_be_as_long_as_the_disk_allows(self, tmp_path: Path) -> None:
        path = tmp_path / ("n" * 255)
        Store.create(path)
        Store.open(path).close()
        assert os.listdir(tmp_path) == [path.name]

    def test_refuses_a_missing_folder_and_an_odd_alignment(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="directory"):
            Store.create(tmp_path / "no" / "s.db")
        with pytest.raises(UsageError, match="alignment"):
            Store.create(tmp_path / "s.db", align=100)
        assert os.listdir(tmp_path) == []


class TestOpenRefuses:
    @pytest.mark.parametrize("writable", [False, True])
    def test_what_is_no_store_and_leaves_it_alone(self, tmp_path: Path, writable: bool) -> None:
        newer = bytearray(new_image(8))
        newer[7] = newer[4096 + 7] = ord("4")
        wrong = {
            "empty": (b"", FormatError, "empty"),
            "text": (b"hello, world\n" * 5000, FormatError, "not a store"),
            "short": (b"x", FormatError, "not a store"),
            "newer": (bytes(newer), FormatError, "newer format"),
            "no slots": (bytes(8192), FormatError, "not a store"),
        }
        for name, (contents, kind, message) in wrong.items():
            path = tmp_path / name
            path.write_bytes(contents)
            before = path.stat()
            with pytest.raises(kind, match=message):
                Store.open(path, writable=writable)
            assert path.read_bytes() == contents
            assert path.stat().st_mtime_ns == before.st_mtime_ns

    @pytest.mark.parametrize("writable", [False, True])
    def test_directories_missing_and_special_files(self, tmp_path: Path, writable: bool) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path, message in (
            (tmp_path, "is a directory"),
            (tmp_path / "none", "does not exist"),
            (tmp_path / "fifo", "regular file"),
        ):
            with pytest.raises(UsageError, match=message):
                Store.open(path, writable=writable)
        assert not (tmp_path / "none").exists()

    @pytest.mark.parametrize("writable", [False, True])
    def test_a_truncated_store(self, writable: bool) -> None:
        disk, records = filled(40)
        for size in (1, 511, 512, 4095, 4608, 8191, 9000, records[-1].end - 1):
            cut = MemoryDisk(bytes(disk.cache[:size]))
            with pytest.raises((CorruptError, FormatError)):
                open_store(cut, writable=writable)
            assert len(cut.cache) == size

    def test_writing_with_unknown_features(self) -> None:
        disk, _ = filled(3)
        for offset in (0, 4096):
            disk.cache[offset + 12] = 1
            disk.cache[offset + 508 : offset + 512] = crc32c(disk.cache[offset : offset + 508]).to_bytes(
                4, "little"
            )
        before = bytes(disk.cache)
        said: list[str] = []
        store = open_store(disk, writable=True, report=said.append)
        assert not store.writable
        assert isinstance(store.latched, ReadOnlyError)
        with pytest.raises(ReadOnlyError):
            store.begin()
        assert ids(store) == [3, 2, 1]
        assert len(said) == 1
        assert "read-only" in said[0]
        store.close()
        assert disk.cache == before
        assert ids(open_store(disk)) == [3, 2, 1]


class TestCommit:
    def test_is_there_after_a_reopen(self) -> None:
        disk = stores.disk()
        store = open_store(disk, writable=True)
        made = [commit(store, b"%d" % n * 100, time_ns=n) for n in range(50)]
        assert store.head == made[-1]
        assert (store.next_id, store.durable_id, store.oldest_id) == (51, 50, 1)
        store.close()
        for again in (open_store(disk), open_store(disk, writable=True)):
            assert list(again.records()) == made[::-1]
            assert [again.bytes_of(record) for record in made] == [b"%d" % n * 100 for n in range(50)]
            assert (again.next_id, again.durable_id, again.oldest_id) == (51, 50, 1)

    def test_knows_its_past(self) -> None:
        _, records = filled(10)
        for before, record in pairwise(records):
            assert (record.prev, record.parent, record.parent_id) == (before.offset, before.offset, before.id)
            assert record.synced <= record.offset
        assert records[0].prev == records[0].parent == records[0].parent_id == records[0].skip == 0

    def test_may_have_another_parent_and_a_branch(self) -> None:
        store = open_store(stores.disk(), writable=True)
        first = commit(store)
        commit(store)
        ticket = store.begin().finish(root=NO_ROOT, time_ns=0, branch=4, parent=first)
        store.flush()
        found = store.record(3)
        assert found == ticket.record
        assert (found.parent, found.parent_id, found.branch) == (first.offset, 1, 4)

    def test_times_never_go_backwards(self) -> None:
        store = open_store(stores.disk(), writable=True)
        times = [commit(store, time_ns=t).time_ns for t in (-5, 10, 7, 12, 3)]
        assert times == [-5, 10, 10, 12, 12]

    def test_bytes_are_readable_once_finished_and_later(self) -> None:
        store = open_store(stores.disk(), writable=True)
        commit(store, b"before")
        txn = store.begin()
        a = txn.add(b"abc")
        mutable = bytearray(b"defgh")
        b = txn.add(mutable)
        mutable[:] = b"xxxxx"
        assert b == a + 3
        ticket = txn.finish(root=NO_ROOT, time_ns=0)
        second = queue(store, b"second")
        for _ in range(2):
            assert store.read(a + 1, 4) == b"bcde"
            assert store.bytes_of(ticket.record) == b"abcdefgh"
            assert store.bytes_of(second.record) == b"second"
            assert store.bytes_of(store.record(1)) == b"before"
            assert store.read_checked(a, 8, crc32c(b"abcdefgh")) == b"abcdefgh"
            with pytest.raises(CorruptError, match="what I wanted at offset"):
                store.read_checked(a, 8, 1, "what I wanted")
            store.flush()

    def test_reading_beyond_the_end_is_damage(self) -> None:
        store = open_store(stores.disk(), writable=True)
        with pytest.raises(CorruptError):
            store.read(store.file_bytes - 4, 8)

    def test_abort_leaves_nothing(self) -> None:
        disk = stores.disk()
        store = open_store(disk, writable=True)
        commit(store)
        end, before = store.published_end, bytes(disk.cache)
        for expect in (0, 2 * BYTES_LIMIT):
            txn = store.begin(expect)
            offset = txn.add(b"x" * 100)
            txn.abort()
            assert store.next_id == 2
            store.flush()
            assert store.published_end == end
            assert store.read(offset, 100) == bytes(100)
        assert disk.cache[: len(before)] == before
        assert commit(store).offset == end

    def test_only_one_is_begun_at_a_time(self) -> None:
        store = open_store(stores.disk(), writable=True)
        txn = store.begin()
        with pytest.raises(RuntimeError):
            store.begin()
        txn.finish(root=NO_ROOT, time_ns=0)
        store.begin().abort()
        store.flush()
        assert store.durable_id == 1

    def test_is_refused_by_a_reader(self) -> None:
        disk, _ = filled(2)
        store = open_store(disk)
        with pytest.raises(ReadOnlyError, match="for reading"):
            store.begin()
        with pytest.raises(ReadOnlyError, match="for reading"):
            store.reserve(1)
        with pytest.raises(ReadOnlyError, match="for reading"):
            store.flush()

    def test_of_nothing(self) -> None:
        disk = stores.disk()
        store = open_store(disk, writable=True)
        record = commit(store, b"")
        assert store.bytes_of(record) == b""
        store.close()
        assert ids(open_store(disk)) == [1]

    def test_of_more_than_recovery_should_read_is_staged(self) -> None:
        disk = stores.disk()
        store = open_store(disk, writable=True)
        commit(store)
        pieces = [bytes([n]) * 300_001 for n in range(40)]
        txn = store.begin(sum(map(len, pieces)))
        places = [txn.add(piece) for piece in pieces]
        ticket = txn.finish(root=NO_ROOT, time_ns=0)
        assert [store.read(at, len(piece)) for at, piece in zip(places, pieces, strict=True)] == pieces
        store.flush()
        assert ticket.record.length <= BYTES_LIMIT
        assert places[0] == ticket.record.bytes_offset
        last = commit(store, b"and on")
        store.close()
        again = open_store(disk, writable=True)
        assert again.head == last
        assert [again.read(at, len(piece)) for at, piece in zip(places, pieces, strict=True)] == pieces
        assert commit(again).id == 4

    def test_gives_back_what_its_stage_did_not_need(self) -> None:
        disk = stores.disk()
        punched: list[int] = []

        class Punching(MemoryFile):
            def punch(self, offset: int, length: int) -> None:
                punched.append(length)
                super().punch(offset, length)

        store = Store.open("memory", writable=True, opener=lambda _path, _writable: Punching(disk))
        txn = store.begin(30 << 20)
        last = [txn.add(bytes([n]) * (1 << 20)) for n in range(6)][-1]
        txn.finish(root=NO_ROOT, time_ns=0)
        assert len(punched) == 1
        assert punched[0] >= 24 << 20
        assert store.read(last, 1 << 20) == bytes([5]) * (1 << 20)

    def test_close_writes_what_is_queued(self) -> None:
        disk = stores.disk()
        store = open_store(disk, writable=True)
        queue(store)
        queue(store)
        store.close()
        assert ids(open_store(disk)) == [2, 1]


class TestReader:
    def test_follows_the_writer(self) -> None:
        disk = stores.disk()
        reader = open_store(disk)
        assert not reader.refresh()
        writer = open_store(disk, writable=True)
        assert not reader.refresh()
        for n in range(1, 40):
            made = commit(writer)
            assert reader.refresh()
            assert reader.head == made
            assert reader.published_end == writer.published_end
            assert not reader.refresh()
            assert (reader.next_id, reader.durable_id, reader.oldest_id) == (n + 1, n, 1)
        queue(writer)
        assert not reader.refresh()
        writer.close()
        assert reader.refresh()
        assert ids(reader) == list(range(40, 0, -1))

    def test_forgets_a_commit_that_a_later_writer_found_torn(self) -> None:
        disk, records = filled(20)
        writer = open_store(disk, writable=True)
        lost = commit(writer, b"lost", time_ns=1)
        reader = open_store(disk)
        assert reader.head == lost
        stores.flip(disk, lost.bytes_offset)  # the device has other bytes
        writer = open_store(disk, writable=True)
        assert writer.head == records[-1]
        assert reader.refresh()
        assert reader.head == records[-1]
        made = commit(writer, b"made", time_ns=2)
        assert made.offset == lost.offset
        assert reader.refresh()
        assert reader.head == made
        assert reader.record(21) == made
        assert reader.bytes_of(made) == b"made"

    def test_sees_a_whole_commit_by_another_writer_in_place_of_a_lost_one(self) -> None:
        disk, _ = filled(20)
        writer = open_store(disk, writable=True)
        lost = commit(writer, b"lost")
        reader = open_store(disk)
        stores.flip(disk, lost.bytes_offset)
        made = commit(open_store(disk, writable=True), b"made")
        assert reader.refresh()
        assert reader.head == made != lost

    def test_opens_while_a_writer_is_at_work(self) -> None:
        disk = stores.disk()
        writer = open_store(disk, writable=True)

        class Racing(MemoryFile):
            """Between any two looks at the file the writer has gone on, at first."""

            looks = 0

            def pread(self, length: int, offset: int) -> bytes:
                self.looks += 1
                for _ in range(20 if self.looks < 8 else 0):
                    commit(writer, bytes(100_000))
                return super().pread(length, offset)

        for _ in range(2):
            before = writer.durable_id
            reader = Store.open("memory", opener=lambda _path, writable: Racing(disk, writable=writable))
            assert reader.durable_id > before
            reader.refresh()
            assert reader.head == writer.head

    def test_notices_a_replaced_file(self, tmp_path: Path) -> None:
        path, other = tmp_path / "s.db", tmp_path / "other.db"
        for name, count in ((path, 3), (other, 5)):
            Store.create(name)
            store = Store.open(name, writable=True)
            for _ in range(count):
                commit(store)
            store.close()
        reader = Store.open(path)
        assert ids(reader) == [3, 2, 1]
        other.replace(path)
        assert reader.refresh()
        assert ids(reader) == [5, 4, 3, 2, 1]
        reader.close()
