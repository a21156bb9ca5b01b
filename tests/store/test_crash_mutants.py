"""Engines broken on purpose: the crash checker has to find each of them out."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from commitfs import native
from commitfs.store.store import Store
from tests.support.crash_check import Checker, CrashFailure
from tests.support.crash_file import CrashFile
from tests.support.crash_load import Load, short_tail
from tests.support.crash_mutants import (
    NoCut,
    NoSync,
    SlotFirst,
    StageSyncMerged,
    Wrap,
    broken_walk,
    rewrapped,
)
from tests.support.crash_states import Enumerator
from tests.torture import crash as torture


@pytest.fixture(autouse=True)
def _short_tail() -> Iterator[None]:
    with short_tail():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    Store.create(str(path))
    return path


def hunt(load: Load) -> Checker:
    load.store.close()
    checker = Checker(load.path, load.made, nest_every=60)
    checker.run(Enumerator(load.trace, per_prefix=60).states())
    return checker


@pytest.mark.parametrize("mutant", [NoSync, SlotFirst])
def test_a_file_that_breaks_the_order_is_found_out(path: Path, mutant: type[CrashFile]) -> None:
    load = Load.on(path, seed=31, wrap=rewrapped(mutant))
    load.commits(25)
    with pytest.raises(CrashFailure):
        hunt(load)


def test_merged_syncs_of_stage_and_commit_are_found_out(path: Path) -> None:
    load = Load.on(path, seed=32, wrap=rewrapped(StageSyncMerged))
    trio.run(load.staged, 2)
    with pytest.raises(CrashFailure):
        hunt(load)


@pytest.mark.parametrize(
    ("checks", "wrap"),
    [
        pytest.param({"check_bytes": False}, None, id="checksum of the record only"),
        pytest.param({"check_continuity": False}, rewrapped(NoCut), id="no chain and session"),
    ],
)
def test_a_walk_that_checks_too_little_is_found_out(
    path: Path, monkeypatch: pytest.MonkeyPatch, checks: dict[str, bool], wrap: Wrap | None
) -> None:
    load = Load.on(path, seed=33, trees=False)
    load.commits(25)
    monkeypatch.setattr(native, "walk", broken_walk(**checks))
    load.store.close()
    checker = Checker(load.path, load.made, nest_every=0, wrap=wrap)
    with pytest.raises(CrashFailure):
        checker.run(Enumerator(load.trace, per_prefix=60).states())


def test_the_chain_holds_where_a_recovery_clears_nothing(path: Path) -> None:
    """Both defences are there: stale records behind the end do not pass for new ones by themselves."""
    load = Load.on(path, seed=33, trees=False)
    load.commits(25)
    load.store.close()
    checker = Checker(load.path, load.made, nest_every=0, wrap=rewrapped(NoCut))
    checker.run(Enumerator(load.trace, per_prefix=60).states())
    assert checker.states > 300


def test_the_stand_in_for_the_walk_is_itself_sound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a mutant could be caught for a fault of the test."""
    load = Load.on(path, seed=34, trees=False)
    load.commits(7)
    monkeypatch.setattr(native, "walk", broken_walk())
    assert hunt(load).states > 200


LONG_RUN = ["crash", "--states", "120", "--seed", "1", "--short-tail", "--kind", "flat"]


def test_the_long_run_counts_what_it_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", LONG_RUN)
    assert torture.main() == 0
    said = capsys.readouterr()
    assert said.err == "", "progress is for terminals"
    *table, summary, verdict = said.out.splitlines()
    assert [line.split()[0] for line in table] == ["kind", "flat", "all"]
    assert int(summary.partition(" distinct crash states")[0]) >= 120
    assert verdict == "0 lost, 0 half there, 0 failed to open, 0 otherwise wrong"


def test_the_long_run_tells_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "wrong"
    monkeypatch.setattr("sys.argv", [*LONG_RUN, "--keep", str(kept)])
    monkeypatch.setattr(native, "walk", broken_walk(check_bytes=False))
    assert torture.main() == 1
    said = capsys.readouterr()
    assert not said.out.endswith("0 lost, 0 half there, 0 failed to open, 0 otherwise wrong\n")
    assert "half there: flat load of seed 1000003: after operation" in said.err
    assert Store.open(str(kept)).head is not None
