"""Where the log ends: torn ends, damage, lost slots, lost pages."""

import random
from collections.abc import Sequence

import pytest

from commitfs.errors import CorruptError, FormatError, ReadOnlyError
from commitfs.format.record import LOG_START, RECORD_SIZE, pack
from commitfs.format.slot import SLOT_OFFSETS
from commitfs.native import crc32c
from commitfs.store.store import Store
from commitfs.types import Buffer
from tests.support import stores
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import commit, filled, flip, ids, open_store, queue


def copy(disk: MemoryDisk) -> MemoryDisk:
    return MemoryDisk(disk.cache)


def newest(disk: MemoryDisk, *, writable: bool = False) -> int:
    store = open_store(disk, writable=writable)
    found = store.next_id - 1
    store.file.close()
    return found


def crashed(count: int) -> tuple[MemoryDisk, list[int]]:
    """`count` commits in a store that was never closed; ends of the commits."""
    disk = stores.disk()
    store = open_store(disk, writable=True)
    return disk, [commit(store, b"%04d" % n * 30).end for n in range(count)]


@pytest.mark.parametrize("align", [8, 4096])
@pytest.mark.parametrize("size", [0, 1, 65_407, 65_408, 65_409, 65_536, 131_072, 1 << 20, 5 << 20])
def test_commits_of_any_size_are_found(align: int, size: int) -> None:
    for before in (0, 1, 17):
        disk = stores.disk(align)
        store = open_store(disk, writable=True)
        for _ in range(before):
            commit(store, b"small")
        made = [commit(store, bytes([n]) * size) for n in range(3)]
        reader = open_store(disk)
        assert list(reader.records())[:3] == made[::-1]
        store = open_store(disk, writable=True)
        assert store.head == made[-1]
        assert store.writable
        made.append(commit(store, b"after" * size))
        assert reader.refresh()
        assert reader.head == made[-1]
        for slot in SLOT_OFFSETS:
            flip(disk, slot + 300)
        assert open_store(disk).head == made[-1]


class TestTornEnd:
    def test_at_every_byte(self) -> None:
        disk, ends = crashed(3)
        start = ends[1]
        whole = bytes(disk.cache)
        for cut in range(start, ends[2]):
            torn = MemoryDisk(whole[:cut] + bytes(len(whole) - cut))
            lost = whole[cut : ends[2]].strip(b"\0")
            assert newest(torn) == (2 if lost else 3)
            store = open_store(torn, writable=True)
            assert store.next_id == (3 if lost else 4)
            assert store.writable

    def test_in_either_order(self) -> None:
        disk, ends = crashed(3)
        for start, size in ((ends[1], RECORD_SIZE), (ends[1] + RECORD_SIZE, 50)):
            torn = copy(disk)
            torn.cache[start : start + size] = bytes(size)
            assert newest(torn) == 2

    def test_is_overwritten_by_the_next_writer(self) -> None:
        disk, ends = crashed(5)
        flip(disk, ends[3] + RECORD_SIZE + 3)
        for n in range(4, 30):
            store = open_store(disk, writable=True)
            assert store.next_id == n + 1
            assert commit(store, b"again").id == n + 1
            store.file.close()
        assert ids(open_store(disk)) == list(range(30, 0, -1))

    def test_nothing_stale_behind_it_is_ever_accepted(self) -> None:
        # Group of three whose first is torn: the others are whole and must not come back to life when
        # the next writer's records end where they begin.
        disk = stores.disk()
        store = open_store(disk, writable=True)
        first = commit(store)
        tickets = [queue(store, b"%d" % n * 8) for n in range(3)]
        store.flush()
        store.file.close()
        flip(disk, tickets[0].record.bytes_offset)
        assert newest(disk) == 1
        store = open_store(disk, writable=True)
        assert store.head == first
        again = commit(store, b"x" * 8)
        assert again.end == tickets[1].record.offset
        assert newest(disk) == 2
        store.file.close()
        assert newest(disk, writable=True) == 2

    def test_stays_what_it_is_without_the_cut(self) -> None:
        # The same, with the stale records put back as if the zeros had never reached the device.
        disk = stores.disk()
        store = open_store(disk, writable=True)
        commit(store)
        tickets = [queue(store, b"%d" % n * 8) for n in range(3)]
        store.flush()
        stale = bytes(disk.cache[tickets[1].record.offset : tickets[2].record.end])
        flip(disk, tickets[0].record.bytes_offset)
        store = open_store(disk, writable=True)
        again = commit(store, b"0" * 8)
        disk.cache[again.end : again.end + len(stale)] = stale
        assert newest(disk) == 2

    def test_leaves_a_tail_of_zeros(self) -> None:
        disk, ends = crashed(4)
        flip(disk, ends[2] + 5)
        store = open_store(disk, writable=True)
        end = store.published_end
        assert end == ends[2]
        assert store.file_bytes >= 1 << 20
        assert not any(disk.cache[end:])

    def test_a_clean_tail_is_kept(self) -> None:
        disk, _ = filled(4)
        before = bytes(disk.cache)
        store = open_store(disk, writable=True)
        assert disk.cache == before
        assert store.file_bytes == len(before)

    def test_holes_in_the_tail_are_laid_anew(self) -> None:
        disk, records = filled(4)

        class Holed(MemoryFile):
            laid: list[int] = []

            def holes(self, offset: int) -> int:
                return offset + 5000

            def write_aside(self, data: Buffer, offset: int) -> None:
                self.laid.append(offset)
                super().write_aside(data, offset)

        Store.open("memory", writable=True, opener=lambda _path, writable: Holed(disk, writable=writable))
        assert Holed.laid == [records[-1].end]

    def test_a_full_disk_does_not_keep_a_store_from_opening(self) -> None:
        disk = stores.limited_disk()
        store = open_store(disk, writable=True)
        end = commit(store).end
        commit(store)
        flip(disk, end)
        disk.limit = end + 10
        store = open_store(disk, writable=True)
        assert store.next_id == 2
        with pytest.raises(OSError, match="space"):
            store.begin()
        disk.limit = 1 << 30
        assert commit(store).id == 2


class TestLostPages:
    """After a failed sync the kernel takes the pages for clean: reads show them, the device lacks them."""

    def test_a_writer_walks_what_the_device_has(self) -> None:
        disk, ends = crashed(30)
        store = open_store(disk, writable=True)
        disk.synced()

        class Losing(MemoryFile):
            def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
                self.disk.put(b"".join(buffers), offset)
                self.disk.lose(offset)
                raise OSError(5, "Input/output error")

        store.log.file = Losing(disk)  # type: ignore[union-attr]
        with pytest.raises(OSError, match="Input"):
            commit(store, b"lost")
        assert newest(disk) == 31, "a reader still sees it in the cache"
        again = open_store(disk, writable=True)
        assert again.next_id == 31
        assert again.published_end == ends[-1]
        assert commit(again, b"made").id == 31


class TestDamage:
    def test_below_what_was_durable_is_no_torn_end(self) -> None:
        disk, ends = crashed(15)
        for at in (9, 13, 14):
            for byte in (3, 60, 127, RECORD_SIZE + 20):
                hurt = copy(disk)
                flip(hurt, ends[at - 1] + byte)
                before = bytes(hurt.cache)
                assert newest(hurt) == (14 if at == 14 else 15), "a reader finds what lies behind"
                said: list[str] = []
                store = open_store(hurt, writable=True, report=said.append)
                if at == 14:
                    assert store.writable, "nothing behind says that the last was durable"
                    continue
                assert not store.writable
                assert isinstance(store.latched, CorruptError)
                assert len(said) == 1
                assert f"offset {ends[at - 1]}" in said[0]
                assert "commitfs check" in said[0]
                with pytest.raises(ReadOnlyError):
                    store.begin()
                assert store.next_id == 16, "what lies behind the damage is not hidden"
                assert store.record(15).id == 15
                assert not store.refresh()
                store.close()
                assert hurt.cache == before

    @pytest.mark.parametrize("beside", range(-136, 17, 8))
    def test_is_seen_wherever_the_survivor_lies(self, beside: int) -> None:
        # The survivor's record near the end of the first piece that is looked through.
        disk = stores.disk()
        store = open_store(disk, writable=True)
        first = commit(store)
        hurt = commit(store, bytes((1 << 20) + beside - RECORD_SIZE))
        last = commit(store, b"last")
        assert last.offset == first.end + (1 << 20) + beside
        flip(disk, hurt.offset + 60)
        store = open_store(disk, writable=True)
        assert not store.writable
        assert store.head == last

    @pytest.mark.parametrize("seed", range(12))
    def test_of_any_byte_that_is_not_the_last_commits(self, seed: int) -> None:
        random_ = random.Random(seed)
        disk = stores.disk()
        store = open_store(disk, writable=True)
        made = [commit(store, random_.randbytes(random_.randrange(1, 250_000))) for _ in range(15)]
        hurt = random_.choice(made[:-1])
        within = random_.choice((RECORD_SIZE, RECORD_SIZE + hurt.length))
        flip(disk, hurt.offset + random_.randrange(within), random_.randrange(8))
        before = bytes(disk.cache)
        store = open_store(disk, writable=True)
        assert not store.writable
        assert store.head == made[-1]
        assert [record for record in store.records() if record != hurt] == [
            r for r in made[::-1] if r != hurt
        ]
        store.close()
        assert disk.cache == before

    def test_in_two_places(self) -> None:
        disk, ends = crashed(15)
        flip(disk, ends[3] + 9)
        flip(disk, ends[8] + RECORD_SIZE)
        store = open_store(disk, writable=True)
        assert not store.writable
        assert store.next_id == 16

    def test_of_the_record_a_slot_names(self) -> None:
        disk, records = filled(20)
        flip(disk, records[-1].offset + 40)
        said: list[str] = []
        reader = open_store(disk, report=said.append)
        assert reader.head == records[-1]
        assert len(said) == 1
        writer = open_store(disk, writable=True, report=said.append)
        assert not writer.writable
        assert writer.head == records[-1]
        assert len(said) == 2

    def test_far_below_is_left_to_check(self) -> None:
        disk, records = filled(40)
        flip(disk, records[4].bytes_offset)
        assert open_store(disk, writable=True).writable


def test_records_of_a_newer_version_are_read_and_not_added_to() -> None:
    disk, ends = crashed(5)
    flip(disk, ends[4 - 1] + 6, 2)  # an unknown flag of the low byte, in the last record
    start = ends[4 - 1]
    disk.cache[start + 124 : start + 128] = crc32c(disk.cache[start : start + 124]).to_bytes(4, "little")
    before = bytes(disk.cache)
    assert newest(disk) == 5
    said: list[str] = []
    store = open_store(disk, writable=True, report=said.append)
    assert (store.next_id, store.writable) == (6, False)
    assert "newer version" in said[0]
    with pytest.raises(ReadOnlyError):
        store.begin()
    assert disk.cache == before


class TestSlots:
    def test_either_may_be_lost(self) -> None:
        disk, ends = crashed(60)
        for slot in SLOT_OFFSETS:
            for writable in (False, True):
                hurt = copy(disk)
                hurt.cache[slot : slot + 512] = random.Random(1).randbytes(512)
                assert newest(hurt, writable=writable) == 60
        assert ends

    @pytest.mark.parametrize("with_stage", [False, True])
    def test_both_may_be_lost(self, with_stage: bool) -> None:
        disk = stores.disk()
        store = open_store(disk, writable=True)
        if with_stage:
            txn = store.begin(6 << 20)
            txn.abort()
            assert store.log is not None
            end = store.log.stage_end(5000)
            store.log.tail.lay_behind(end, 0)
            store.log.place_stage(end)
        records = [commit(store, b"%d" % n) for n in range(60)]
        store.close()
        for slot in SLOT_OFFSETS:
            disk.cache[slot : slot + 512] = bytes(512)
        said: list[str] = []
        reader = open_store(disk, report=said.append)
        assert ids(reader) == list(range(60, 0, -1))
        assert reader.oldest_id == 1
        assert len(said) == 1
        assert "both head slots" in said[0]
        writer = open_store(disk, writable=True)
        assert writer.head == records[-1]
        commit(writer)
        writer.close()
        assert newest(disk) == 61
        again = open_store(disk, writable=True, report=said.append)
        assert (again.oldest_id, again.record(1).offset) == (1, records[0].offset)
        assert len(said) == 1, "the slots are there again"

    def test_both_lost_and_no_log(self) -> None:
        disk = stores.disk()
        for slot in SLOT_OFFSETS:
            flip(disk, slot + 300)
        for writable in (False, True):
            with pytest.raises(CorruptError, match="beginning of the log are damaged"):
                open_store(disk, writable=writable)

    def test_a_newer_format_in_one(self) -> None:
        disk, _ = filled(3)
        disk.cache[7] = ord("4")
        assert newest(disk) == 3, "a turned bit is not a newer format"
        for slot in SLOT_OFFSETS:
            disk.cache[slot + 7] = ord("4")
        with pytest.raises(FormatError, match="newer"):
            open_store(disk)


class TestAlign:
    def test_groups_begin_at_multiples(self) -> None:
        for align in (512, 4096):
            disk = stores.disk(align)
            store = open_store(disk, writable=True)
            groups = []
            for size in (1, 2, 3):
                groups.append([queue(store, b"x" * 100).record.offset for _ in range(size)])
                store.flush()
            assert all(group[0] % align == 0 for group in groups)
            assert groups[2][1] == groups[2][0] + RECORD_SIZE + 104
            store.close()
            assert ids(open_store(disk)) == [6, 5, 4, 3, 2, 1]

    def test_a_gap_too_small_for_a_record_takes_another_unit(self) -> None:
        disk = stores.disk(512)
        store = open_store(disk, writable=True)
        commit(store, b"x" * (512 - 2 * RECORD_SIZE + 8))
        assert store.published_end == LOG_START + 1024
        commit(store, b"x" * (512 - RECORD_SIZE))
        assert store.published_end == LOG_START + 1536

    def test_a_writer_drops_the_rest_of_a_torn_group(self) -> None:
        disk = stores.disk(512)
        store = open_store(disk, writable=True)
        first = commit(store)
        tickets = [queue(store, b"%d" % n) for n in range(3)]
        store.flush()
        flip(disk, tickets[2].record.offset)
        assert newest(disk) == 3, "a reader takes what is whole"
        store = open_store(disk, writable=True)
        assert store.head == first
        assert commit(store).offset % 512 == 0
        assert newest(disk) == 2

    def test_is_known_without_slots(self) -> None:
        disk = stores.disk(4096)
        store = open_store(disk, writable=True)
        commit(store)
        commit(store)
        store.close()
        for slot in SLOT_OFFSETS:
            flip(disk, slot + 300)
        store = open_store(disk, writable=True)
        assert store.align == 4096
        assert commit(store).offset % 4096 == 0


def test_opening_reads_little(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    class Counting(MemoryFile):
        def pread(self, length: int, offset: int) -> bytes:
            data = super().pread(length, offset)
            reads.append(len(data))
            return data

    seen = []
    for count in (20, 2000):
        disk, _ = filled(count)
        for writable in (False, True):
            reads.clear()
            Store.open("memory", writable=writable, opener=lambda _p, w, d=disk: Counting(d, writable=w))  # type: ignore[misc]
            seen.append((len(reads), sum(reads)))
    assert seen[0][0] == seen[2][0]
    assert seen[1][0] == seen[3][0]
    assert max(total for _, total in seen) < 3 << 20


@pytest.mark.parametrize("writable", [False, True])
def test_memory_is_taken_for_what_the_file_has_only(writable: bool) -> None:
    """A record that claims 4 GiB, and the file ends behind it."""
    made, records = filled(3)
    last = records[-1]
    forged = last._replace(id=4, offset=last.end, chain=last.crc, length=2**32 - 1, flags=3)
    made.put(pack(forged, crc32c)[0], last.end)
    asked: list[int] = []

    class Counted(MemoryFile):
        def pread(self, length: int, offset: int) -> bytes:
            asked.append(length)
            return super().pread(length, offset)

    store = Store.open("memory", writable=writable, opener=lambda _, w: Counted(made, writable=w))
    assert store.durable_id == 3
    assert max(asked) <= len(made.cache)
    store.close()
