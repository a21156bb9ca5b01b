"""P8: readers in other processes see whole commits only, and never less than they saw; mutants that do not.

Every load of tests/store/test_crash.py is looked at by such readers as well.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitfs import native
from commitfs.format.record import RECORD_SIZE, Record, parse
from commitfs.store.index import Index
from commitfs.store.store import Store
from tests.support.crash_check import Checker, CrashFailure, Fault
from tests.support.crash_load import Load, drawn, short_tail
from tests.support.crash_mutants import NoSync, SlotFirst, broken_walk, rewrapped
from tests.support.crash_reader import Watch
from tests.support.crash_states import Enumerator


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    with short_tail(), drawn(1):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    Store.create(str(path))
    return path


def worked_on(path: Path, commits: int = 25, *, trees: bool = True) -> Load:
    load = Load.on(path, seed=51, trees=trees)
    load.commits(commits)
    load.store.close()
    return load


def watch(load: Load) -> Watch:
    watch = Watch(load.path, load.made)
    watch.run(load.trace)
    return watch


def check(load: Load) -> Checker:
    checker = Checker.of(load, nest_every=0)
    checker.run(Enumerator(load.trace, per_prefix=40, exhaustive=6).states())
    return checker


def test_whole_commits_only_are_seen_beside_the_writer(path: Path) -> None:
    watched = watch(worked_on(path))
    assert watched.views > 300
    assert watched.moving > 20


def test_a_reader_from_before_the_crash_looks_at_every_state(path: Path) -> None:
    checker = check(worked_on(path))
    assert checker.followed == checker.states > 300


def test_a_reader_that_does_not_compare_its_record_is_found_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some record is there: it takes it for the one it knows."""

    def some_record(self: Store, head: Record) -> bool:
        return parse(self.file.pread(RECORD_SIZE, head.offset), native.crc32c) is not None

    load = worked_on(path)
    monkeypatch.setattr(Store, "_still_there", some_record)
    with pytest.raises(CrashFailure) as caught:
        check(load)
    assert caught.value.fault is Fault.WRONG


def test_a_reader_that_remembers_torn_commits_is_found_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = worked_on(path)
    monkeypatch.setattr(Index, "forget", lambda self: None)
    with pytest.raises(CrashFailure):
        check(load)


def test_a_reader_that_does_not_check_bytes_is_found_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = worked_on(path, trees=False)
    monkeypatch.setattr(native, "walk", broken_walk(check_bytes=False))
    with pytest.raises(AssertionError, match="a reader beside the writer"):
        watch(load)


def test_a_writer_that_names_commits_too_early_is_found_out(path: Path) -> None:
    load = Load.on(path, seed=31, wrap=rewrapped(SlotFirst))
    load.commits(25)
    with pytest.raises(AssertionError, match="a reader beside the writer"):
        watch(load)


def test_without_a_crash_a_missing_sync_shows_to_nobody(path: Path) -> None:
    """Readers beside the writer see what was written, synced or not: else they would see a crash."""
    load = Load.on(path, seed=31, wrap=rewrapped(NoSync))
    load.commits(25)
    assert watch(load).views > 300
