"""The crash enumerator itself: what it counts as durable, as open, and as impossible."""

import errno

import pytest

from commitfs.store.file import WriteFailed
from tests.support.crash_file import CrashFile, Trace
from tests.support.crash_states import Enumerator
from tests.support.failing_file import FailingFile, Faults, Kind
from tests.support.memory_file import MemoryDisk


def crash_file(contents: bytes = b"") -> CrashFile:
    return CrashFile(MemoryDisk(contents), Trace(contents))


def files(trace: Trace, *, at: int | None = None) -> list[bytes]:
    """The distinct files a crash may leave after `at` operations (at the end by default)."""
    prefix = len(trace.ops) if at is None else at
    every = [s for s in Enumerator(trace, start=prefix).states() if s.prefix == prefix]
    return sorted({bytes(s.image) for s in every if s.image is not None})


def sectors(*letters: bytes) -> bytes:
    return b"".join(letter * 512 for letter in letters)


def test_any_set_of_unsynced_sectors_may_be_there() -> None:
    file = crash_file(sectors(b"a", b"b"))
    file.write(sectors(b"X", b"Y"), 0)
    expected = {sectors(p, q) for p in (b"a", b"X") for q in (b"b", b"Y")}
    assert set(files(file.trace)) == expected


def test_a_write_changes_nothing_outside_its_range() -> None:
    file = crash_file(b"a" * 1024)
    file.write(b"X" * 512, 256)
    old, new = b"a" * 256, b"X" * 256
    assert set(files(file.trace)) == {old + p + q + old for p in (old, new) for q in (old, new)}


def test_a_sync_leaves_one_file() -> None:
    file = crash_file(bytes(2048))
    file.write(b"X" * 2048, 0)
    assert len(files(file.trace)) == 16
    file.sync()
    assert files(file.trace) == [b"X" * 2048]


def test_a_durable_write_covers_only_its_range() -> None:
    file = crash_file(bytes(2048))
    file.write(b"X" * 512, 0)
    file.write_durable([b"Y" * 512], 1024)
    tail = bytes(512) + b"Y" * 512 + bytes(512)
    assert set(files(file.trace)) == {bytes(512) + tail, b"X" * 512 + tail}


def test_a_stage_sync_covers_stage_writes_only() -> None:
    file = crash_file(bytes(1024))
    file.write(b"X" * 512, 0)
    file.write_stage(b"Y" * 512, 512)
    file.sync_stage()
    assert set(files(file.trace)) == {bytes(512) + b"Y" * 512, b"X" * 512 + b"Y" * 512}


def test_a_size_may_change_without_its_data_and_show_stale_bytes() -> None:
    file = crash_file(sectors(b"a", b"b"))
    file.truncate(512)
    file.sync()
    file.write(b"X" * 512, 512)
    short, a, b = sectors(b"a"), sectors(b"a"), sectors(b"b")
    assert set(files(file.trace)) == {short, a + bytes(512), a + b, a + b"X" * 512}


def test_data_beyond_the_size_shows_only_when_the_size_changed() -> None:
    file = crash_file(sectors(b"a"))
    file.write_durable([b"X" * 512], 512)
    filler = b"\xa5" * 512  # stands for what lay there before
    assert set(files(file.trace, at=1)) == {
        sectors(b"a"),
        sectors(b"a") + bytes(512),
        sectors(b"a") + filler,
        sectors(b"a", b"X"),
    }
    assert files(file.trace) == [sectors(b"a", b"X")]


def test_a_cut_may_be_missing_but_never_undoes_a_later_durable_write() -> None:
    file = crash_file(sectors(b"a", b"b", b"c"))
    file.truncate(512)
    assert set(files(file.trace)) == {sectors(b"a"), sectors(b"a", b"b", b"c")}
    file.write_durable([b"X" * 512], 512)
    assert files(file.trace) == [sectors(b"a", b"X")]


def test_a_hole_is_punched_whole_or_not() -> None:
    file = crash_file(sectors(b"a", b"b", b"c"))
    file.punch(512, 1024)
    assert set(files(file.trace)) == {sectors(b"a", b"b", b"c"), sectors(b"a") + bytes(1024)}
    file.write_durable([b"X" * 512], 512)
    assert files(file.trace) == [sectors(b"a", b"X") + bytes(512)]


def test_what_a_failed_sync_lost_stays_open_until_it_is_written_again() -> None:
    file = crash_file(bytes(4096))
    failing = FailingFile(file, Faults(Kind.LOST, at=1, names=frozenset({"sync"})))
    failing.write(b"X" * 512, 0)
    with pytest.raises(OSError, match="Input/output"):
        failing.sync()
    failing.sync()
    assert set(files(file.trace)) == {bytes(4096), b"X" * 512 + bytes(3584)}
    assert failing.pread(512, 0) == b"X" * 512
    failing.drop_cache(0)
    assert failing.pread(512, 0) == bytes(512)
    failing.write_durable([b"Z" * 256], 0)
    assert set(files(file.trace)) == {b"Z" * 256 + rest + bytes(3584) for rest in (bytes(256), b"X" * 256)}


def test_writing_in_a_lost_page_makes_all_of_it_dirty_again() -> None:
    file = crash_file(bytes(4096))
    failing = FailingFile(file, Faults(Kind.LOST, at=1, names=frozenset({"sync"})))
    failing.write(b"X" * 512, 0)
    with pytest.raises(OSError, match="Input/output"):
        failing.sync()
    failing.write(b"Y" * 512, 1024)
    failing.sync()
    file.disk.drop_cache()
    assert file.pread(1536, 0) == sectors(b"X", b"\0", b"Y")
    assert files(file.trace) == [sectors(b"X", b"\0", b"Y") + bytes(2560)]


def test_half_of_a_lost_range_may_have_reached_the_device() -> None:
    file = crash_file(bytes(8192))
    failing = FailingFile(file, Faults(Kind.HALF_LOST, at=1))
    with pytest.raises(OSError, match="Input/output"):
        failing.write_durable([b"X" * 8192], 0)
    file.disk.drop_cache()
    assert file.pread(8192, 0) == b"X" * 4096 + bytes(4096)


def test_no_space_is_told_apart_and_leaves_half_a_write() -> None:
    file = crash_file(bytes(1024))
    failing = FailingFile(file, Faults(errno=errno.ENOSPC, at=2, lasting=True))
    failing.write(b"X", 0)
    for _ in range(2):
        with pytest.raises(WriteFailed):
            failing.write_durable([b"Y" * 512], 512)
    failing.faults.heal()
    failing.write_durable([b"Z" * 512], 512)
    assert file.pread(1024, 0) == b"X" + bytes(511) + b"Z" * 512
    assert failing.faults.hit == ["write_durable"] * 2


def test_a_read_may_be_short() -> None:
    failing = FailingFile(crash_file(b"abcdef"), Faults(Kind.SHORT, at=1))
    assert failing.pread(4, 0) == b"ab"
    assert failing.pread(4, 0) == b"abcd"


def test_many_pieces_are_sampled_within_the_bound() -> None:
    file = crash_file(bytes(512 * 64))
    file.write(b"X" * 512 * 64, 0)
    enumerator = Enumerator(file.trace, per_prefix=50, start=0)
    found = [bytes(s.image) for s in enumerator.states() if s.image is not None]
    assert len(found) == 50
    assert {bytes(512 * 64), b"X" * 512 * 64} < set(found)


def test_equal_files_are_given_once_and_acknowledgements_counted() -> None:
    file = crash_file(bytes(1024))
    file.trace.placed(1)
    file.write_durable([b"X" * 1024], 0)
    file.trace.ack(1)
    states = list(Enumerator(file.trace, start=0).states())
    assert [(s.acked, s.placed) for s in states][:1] == [(0, 0)]
    assert (states[-1].acked, states[-1].placed) == (1, 1)
    assert states[-1].image is None
    assert states[-1].digest in [s.digest for s in states if bytes(s.image or b"") == b"X" * 1024]


def test_equal_files_have_equal_names_however_they_came_about() -> None:
    """So that a file met again during a recovery is not counted twice."""
    file = crash_file(bytes(700))
    file.write(b"X" * 600, 400)
    file.truncate(900)
    at_last = [(s.digest, bytes(s.image or b"")) for s in Enumerator(file.trace, start=0).states()]
    for digest, image in at_last:
        if image:
            [alone] = Enumerator(Trace(image), start=0).states()
            assert alone.digest == digest


def test_replaying_the_trace_gives_the_file() -> None:
    file = crash_file(b"start")
    file.write(b"abc", 3)
    file.truncate(2)
    file.allocate(0, 100)
    file.write_stage(b"z" * 50, 90)
    file.punch(95, 1000)
    file.write_durable([b"p", b"q"], 200)
    file.truncate(150)
    assert file.trace.replay() == bytes(file.disk.cache)


@pytest.mark.parametrize("unit", [512, 4096])
def test_an_interrupted_write_may_destroy_the_units_it_touches_and_no_others(unit: int) -> None:
    old = b"a" * 4 * unit
    file = crash_file(old)
    file.write(b"X" * 100, unit + 50)
    states = list(Enumerator(file.trace, destroys=unit, start=1).states())
    images = {bytes(state.image) for state in states if state.image is not None}
    assert len(images) > 10
    assert {image[:unit] for image in images} == {old[:unit]}
    assert {image[2 * unit :] for image in images} == {old[: 2 * unit]}
    assert {image[unit] == old[0] for image in images} == {True, False}
    assert {image[2 * unit - 1] == old[0] for image in images} == {True, False}
    file.sync()
    assert len(files_of(file.trace, unit)) == 1, "what is durable is in no danger"


def files_of(trace: Trace, unit: int) -> list[bytes]:
    start = len(trace.ops)
    return [bytes(s.image or b"") for s in Enumerator(trace, destroys=unit, start=start).states()]
