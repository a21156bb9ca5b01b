"""P6 on a medium without powersafe overwrite, where an interrupted write may destroy the units it touches.

A store whose alignment is that of the units or a multiple loses nothing there.  One without loses commits
that were acknowledged, which shows that the model bites.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from commitfs.store.store import Store
from tests.support.crash_check import Checker, CrashFailure, Fault
from tests.support.crash_load import Load, drawn, short_tail
from tests.support.crash_states import Enumerator


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    with short_tail(), drawn(1):
        yield


def new_load(folder: Path, align: int) -> Load:
    path = folder / "store"
    Store.create(str(path), align=align)
    return Load.on(path, seed=61)


def faults(load: Load, unit: int) -> tuple[Checker, Counter[Fault]]:
    """The states of the load on a medium of such units, and what is wrong with them."""
    load.store.close()
    found: Counter[Fault] = Counter()

    def count(failure: CrashFailure) -> None:
        found[failure.fault] += 1

    checker = Checker.of(load, nest_every=100, destroys=unit, tolerate=count)
    checker.run(Enumerator(load.trace, seed=1, per_prefix=20, exhaustive=4, destroys=unit).states())
    return checker, found


@pytest.mark.parametrize(("align", "unit"), [(512, 512), (4096, 512), (4096, 4096)])
def test_an_aligned_store_loses_nothing(tmp_path: Path, align: int, unit: int) -> None:
    load = new_load(tmp_path, align)
    load.commits(10)
    trio.run(load.staged, 1)
    load.surplus(1)
    trio.run(load.concurrently, 3, 3)
    checker, found = faults(load, unit)
    assert not found
    assert checker.states > 250


@pytest.mark.parametrize(("align", "unit"), [(8, 512), (512, 4096)])
def test_a_store_that_is_not_aligned_to_the_units_loses_commits(
    tmp_path: Path, align: int, unit: int
) -> None:
    load = new_load(tmp_path, align)
    load.commits(10)
    assert faults(load, unit)[1][Fault.LOST] > 10


def test_an_aligned_store_whose_commits_share_a_sector_is_found_out(tmp_path: Path) -> None:
    load = new_load(tmp_path, 512)
    assert load.store.log is not None
    load.store.log._align = 8  # no pads
    load.commits(10)
    assert faults(load, 512)[1][Fault.LOST] > 10
