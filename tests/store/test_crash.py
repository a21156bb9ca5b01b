"""P6: a crash loses nothing acknowledged, and leaves nothing half there (docs/durability.md).

Each test records a run of the real engine, then opens every file a crash may have left.  The number of
states tried is printed; `python -m tests.torture.crash` tries as many as wanted.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from commitfs.store.make import make_file, new_image
from commitfs.store.puretre2 import EarlierWriter
from commitfs.store.store import Store
from tests.support.crash_check import Checker
from tests.support.crash_file import Write
from tests.support.crash_load import Load, drawn, short_commits, short_tail
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
    checker = Checker(load.path, load.made, load.earlier, thorough, nest_every=nest, seed=1)
    enumerator = Enumerator(load.trace, seed=1, per_prefix=per_prefix, exhaustive=exhaustive)
    checker.run(enumerator.states())
    say(
        f"{len(load.made)} commits, {len(load.trace.ops)} operations, {enumerator.choices} choices, "
        f"{checker.states} crash states opened ({checker.nested} of them in a recovery), "
        f"{checker.repeats} repeated"
    )
    return checker


def test_mixed_commits(path: Path, say: Say) -> None:
    load = Load.on(path, seed=11)
    load.commits(220)
    load.store.close()
    assert check_all(load, say, per_prefix=24, nest=300, thorough=64).states > 7000


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
    make_file(str(path), new_image(8, earlier=True))
    writer = EarlierWriter(str(path))
    for number in range(commits):
        writer.commit([b"commit of the earlier format %d" % number] * 40, time_ns=number)
    writer.close()
    load = Load.on(path, seed=16, earlier=commits)
    load.commits(20)
    load.store.close()
    assert check_all(load, say, per_prefix=32, nest=60).states > 1000


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
    with short_commits():
        load = Load.on(path, seed=18)
        for number in range(8):
            tickets = [load.place((9_000,) * (number % 3 * 2 + 2)), load.place((300,))]
            load.flush(*tickets)
        load.store.close()
        assert any(isinstance(op, Write) and op.stage for op in load.trace.ops)
        assert check_all(load, say, per_prefix=40, nest=60).states > 500
