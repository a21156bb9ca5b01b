"""P6: a crash loses nothing acknowledged, and leaves nothing half there (docs/durability.md).

Each test records a run of the real engine, then opens every file a crash may have left, and looks with a
reader at every view there was without one.  The number of states tried is printed;
`python -m tests.torture.crash` tries as many as wanted.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from commitfs.store.store import Store
from tests.support.crash_check import Checker
from tests.support.crash_file import Allocate, Punch, RecordingRealFile, Resize, Sync, SyncRange, Write
from tests.support.crash_load import Load, drawn, make_earlier, short_tail
from tests.support.crash_reader import Watch
from tests.support.crash_states import Enumerator

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Say:
    def print_through(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {request.node.name}: {text}", end="")

    return print_through


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    Store.create(str(path))
    return path


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    with short_tail(), drawn(1):
        yield


def check_all(
    load: Load, say: Say, *, per_prefix: int, exhaustive: int = 7, nest: int = 40, thorough: int = 16
) -> Checker:
    watch = Watch(load.path, load.made)
    watch.run(load.trace)
    checker = Checker.of(load, thorough=thorough, nest_every=nest)
    enumerator = Enumerator(load.trace, seed=1, per_prefix=per_prefix, exhaustive=exhaustive)
    checker.run(enumerator.states())
    say(
        f"{len(load.made)} commits, {len(load.trace.ops)} operations, {enumerator.choices} choices, "
        f"{checker.states} crash states opened ({checker.nested} of them in a recovery), "
        f"{checker.repeats} repeated, {watch.views} views of readers beside"
    )
    return checker


def test_mixed_commits(path: Path, say: Say) -> None:
    load = Load.on(path, seed=11)
    load.commits(220)
    load.store.close()
    assert check_all(load, say, per_prefix=24, nest=2000, thorough=64).states > 7000


def test_commits_without_a_tree(path: Path, say: Say) -> None:
    load = Load.on(path, seed=12, trees=False)
    load.commits(60)
    load.store.close()
    assert check_all(load, say, per_prefix=64).states > 1500


def test_group_commits_by_many_tasks(path: Path, say: Say) -> None:
    load = Load.on(path, seed=13)
    trio.run(load.concurrently, 5, 6)
    load.store.close()
    assert check_all(load, say, per_prefix=40).states > 200


def test_staged_data(path: Path, say: Say) -> None:
    load = Load.on(path, seed=14)
    trio.run(load.staged, 4)
    load.store.close()
    assert check_all(load, say, per_prefix=40).states > 300


def test_aligned_groups(tmp_path: Path, say: Say) -> None:
    path = tmp_path / "store"
    Store.create(str(path), align=512)
    load = Load.on(path, seed=15, trees=False)
    load.commits(30)
    load.store.close()
    assert check_all(load, say, per_prefix=32).states > 500


@pytest.mark.parametrize("commits", [1, 4])
def test_a_store_of_the_earlier_format_continued(tmp_path: Path, say: Say, commits: int) -> None:
    path = tmp_path / "store"
    make_earlier(path, commits)
    load = Load.on(path, seed=16, earlier=commits)
    load.commits(20)
    load.store.close()
    assert check_all(load, say, per_prefix=32, nest=60).states > 700


@pytest.mark.parametrize("align", [8, 512])
def test_commits_longer_than_a_window_of_the_walk(tmp_path: Path, say: Say, align: int) -> None:
    """One behind the other, so that a window begins with one of them."""
    path = tmp_path / "store"
    Store.create(str(path), align=align)
    load = Load.on(path, seed=17)
    for size in (70_000, 70_000, 10, 200_000, 140_000):
        load.flush(load.place((size,)))
    assert check_all(load, say, per_prefix=12, nest=0).states > 50


def test_commits_whose_surplus_is_staged(path: Path, say: Say) -> None:
    """Of a commit with very many bytes only the first lie behind its record."""
    load = Load.on(path, seed=18)
    load.surplus(8)
    load.store.close()
    assert any(isinstance(op, Write) and op.stage for op in load.trace.ops)
    assert check_all(load, say, per_prefix=40, nest=60).states > 500


@pytest.mark.parametrize("kind", ["packed", "continued", "512", "4096"])
def test_everything_in_one_run(tmp_path: Path, say: Say, kind: str) -> None:
    path = tmp_path / "store"
    if kind == "continued":
        make_earlier(path, 2)
    else:
        Store.create(str(path), align=8 if kind == "packed" else int(kind))
    load = Load.on(path, seed=19, earlier=2 if kind == "continued" else 0)
    load.everything(2)
    load.store.close()
    done = {type(op) for op in load.trace.ops}
    assert {Write, Resize, Allocate, Punch, SyncRange, Sync} <= done
    assert check_all(load, say, per_prefix=10, exhaustive=4, nest=0, thorough=64).states > 250


def test_the_native_thread_beside_the_tasks(path: Path, say: Say) -> None:
    """On a file on disk: records are written and synced by C, while the loop goes on."""
    load = Load.on_disk(path, seed=20)
    file = load.store.file
    trio.run(load.concurrently, 5, 6, False)
    trio.run(load.staged, 2, False)
    load.store.close()
    assert isinstance(file, RecordingRealFile)
    assert file.beside > 10
    assert load.trace.replay() == path.read_bytes()
    assert check_all(load, say, per_prefix=24, nest=200).states > 500
