"""Records found where nothing leads to them, and stores opened from these alone."""

import pytest

from commitfs.errors import FormatError, NotFoundError
from commitfs.format.record import RECORD_SIZE, Record, pack
from commitfs.format.slot import SLOT_OFFSETS
from commitfs.native import crc32c
from commitfs.store import recover
from commitfs.store.salvage import commits_in, first_before, open_damaged
from commitfs.store.search import Read, all_records, next_record
from commitfs.store.store import Store
from tests.support.memory_file import MemoryDisk
from tests.support.stores import commit, disk, filled, flip, open_store, opener


def found_in(on: MemoryDisk) -> list[int]:
    store = open_damaged("memory", opener=opener(on))
    return [record.id for record in commits_in(store)]


@pytest.fixture
def made() -> tuple[MemoryDisk, list[Record]]:
    return filled(30, size=200)


Made = tuple[MemoryDisk, list[Record]]


def test_all_of_a_sound_store(made: Made) -> None:
    on, records = made
    assert found_in(on) == list(range(1, 31))
    store = open_damaged("memory", opener=opener(on))
    assert store.head == records[-1]
    assert list(store.records()) == records[::-1]


@pytest.mark.parametrize("hurt", [[0], [29], [3, 4, 5], list(range(0, 30, 2))])
def test_those_between_damaged_ones(made: Made, hurt: list[int]) -> None:
    on, records = made
    for index in hurt:
        flip(on, records[index].offset + 50)
    expected = [record.id for at, record in enumerate(records) if at not in hurt or at == 29]
    assert found_in(on) == expected, "the newest is in a slot too"


@pytest.mark.parametrize("beside", range(-200, 201, 40))
def test_across_windows(beside: int) -> None:
    on = disk()
    store = open_store(on, writable=True)
    commit(store, bytes(100))
    hurt = commit(store, bytes((1 << 20) + beside))
    after = commit(store, b"after")
    store.close()
    flip(on, hurt.offset + 9)
    found = next_record(store_reader(on), hurt.offset, len(on.cache))
    assert found is not None
    assert found.offset == after.offset


def store_reader(on: MemoryDisk) -> Read:
    return open_damaged("memory", opener=opener(on)).read


def test_without_slots_and_a_beginning(made: Made) -> None:
    on, records = made
    on.cache[: records[9].offset] = bytes(records[9].offset)
    store = open_damaged("memory", opener=opener(on))
    assert [record.id for record in commits_in(store)] == list(range(10, 31))
    assert store.store_number == records[0].store
    assert first_before(store, records[9]) == 0, "the record before it is missed"


def test_records_of_another_store_and_elsewhere_are_left_out(made: Made) -> None:
    on, records = made
    foreign = records[4]._replace(store=records[4].store ^ 1)
    on.cache[foreign.offset : foreign.offset + RECORD_SIZE] = pack(foreign, crc32c)[0]
    moved = bytes(on.cache[records[20].offset : records[20].end])
    on.cache[records[10].offset : records[10].offset + len(moved)] = moved
    assert found_in(on) == [n for n in range(1, 31) if n not in (5, 11)]


def test_an_id_there_is_no_room_for_is_left_out(made: Made) -> None:
    on, records = made
    forged = records[4]._replace(id=1 << 40)
    on.cache[forged.offset : forged.offset + RECORD_SIZE] = pack(forged, crc32c)[0]
    assert found_in(on) == [n for n in range(1, 31) if n != 5]


def test_a_record_that_claims_too_much_hides_nothing(made: Made) -> None:
    on, records = made
    forged = records[4]._replace(length=records[20].offset + 4 - records[4].bytes_offset)
    on.cache[forged.offset : forged.offset + RECORD_SIZE] = pack(forged, crc32c)[0]
    assert found_in(on) == list(range(1, 31))


@pytest.mark.parametrize("keep", [0, 100, 8191, 8192])
def test_what_has_no_commit_is_refused(made: Made, keep: int) -> None:
    on, _ = made
    image = bytes(on.cache[:keep]) if keep < 8192 else bytes(20_000)
    with pytest.raises(FormatError, match="nothing of a store"):
        open_damaged("memory", opener=opener(MemoryDisk(image)))


def test_a_slot_of_another_store_is_not_believed(made: Made) -> None:
    on, records = made
    other, _ = filled(50, size=400)
    for slot in SLOT_OFFSETS:
        hurt = MemoryDisk(on.cache)
        hurt.cache[slot : slot + 512] = other.cache[slot : slot + 512]
        for writable in (False, True):
            store = open_store(hurt, writable=writable)
            assert store.durable_id == 30
            assert store.record(7) == records[6]
            store.close()


def test_two_slots_are_believed_rather_than_the_first_record(made: Made) -> None:
    on, records = made
    foreign = records[0]._replace(store=records[0].store ^ 1)
    on.cache[foreign.offset : foreign.offset + RECORD_SIZE] = pack(foreign, crc32c)[0]
    store = open_store(on)
    assert store.durable_id == 30
    assert store.record(2) == records[1]


def test_a_copy_in_a_slot_stands_for_a_damaged_record(made: Made) -> None:
    on, records = made
    store = open_store(on, writable=True)
    commit(store, b"31")
    store.close()
    flip(on, records[29].offset + 60)
    store = open_store(on)
    assert store.record(30) == records[29]


class TestReaders:
    """They go on behind damage that no slot has named, as the writer does (S15)."""

    def crashed(self) -> tuple[MemoryDisk, list[Record]]:
        on = disk()
        store = open_store(on, writable=True)
        return on, [commit(store, b"contents of %d" % n) for n in range(1, 11)]

    @pytest.mark.parametrize("hurt", [2, 6, 9])
    def test_behind_a_damaged_commit(self, hurt: int) -> None:
        on, records = self.crashed()
        flip(on, records[hurt - 1].bytes_offset)
        said: list[str] = []
        store = open_store(on, report=said.append)
        assert store.durable_id == 10
        assert [record.id for record in store.records()] == list(range(10, 0, -1))
        assert len(said) == 1
        assert f"after commit {hurt - 1}" in said[0]

    def test_a_writer_that_goes_on_meanwhile_is_no_damage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next commits appear between the walk and the look at what follows."""
        on, records = self.crashed()
        whole = bytes(on.cache)
        cut_at = records[5].offset
        shown = MemoryDisk(whole[:cut_at] + bytes(len(whole) - cut_at))
        scan = recover._scan

        def late(*args: object) -> bool:
            shown.cache[:] = whole
            return scan(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(recover, "_scan", late)
        said: list[str] = []
        store = open_store(shown, report=said.append)
        assert (store.durable_id, said) == (10, [])


def test_ids_go_on_where_another_store_ended() -> None:
    on = disk()
    store = open_store(on, writable=True)
    store.number_from(41)
    made = [commit(store, b"%d" % n) for n in range(70)]
    assert [record.id for record in made] == list(range(41, 111))
    assert store.log is not None
    store.log.name_head()
    store.close()
    store = open_store(on)
    assert (store.oldest_id, store.durable_id) == (41, 110)
    for record in made:
        assert store.record(record.id) == record
    with pytest.raises(NotFoundError):
        store.record(40)
    assert [found.id for found in all_records(store.read, store.file_bytes)] == list(range(41, 111))
    again = Store.open("memory", writable=True, opener=opener(on))
    assert commit(again).id == 111
