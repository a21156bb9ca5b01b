"""The recorder of the crash tests, compared from outside with what strace saw of a real file."""

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from commitfs.store.store import Store
from tests.support.crash_file import Ack, Op, Placed, Sync, SyncRange, Trace, Write
from tests.support.strace_log import COMMAND, operations
from tests.support.tracing import tracing_missing

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.skipif(bool(tracing_missing()), reason=tracing_missing())


def run(store: Path, log: Path, kind: str, *more: str) -> None:
    worker = [sys.executable, "-m", "tests.support.strace_worker", str(store), kind, *more]
    command = [*COMMAND, "-o", str(log), *worker]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def shape(ops: list[Op]) -> list[tuple[object, ...]]:
    """What both sides must agree on, in order: every change and every sync."""
    result: list[tuple[object, ...]] = []
    for op in ops:
        match op:
            case Ack() | Placed():
                pass
            case SyncRange(offset, length):
                result.append(("sync", offset, length))
            case Sync():
                result.append(("sync",))
            case Write(offset, data):
                result.append(("write", offset, data))
            case _:
                result.append((op,))
    return result


@pytest.mark.parametrize("kind", ["alone", "tasks"])
def test_the_recorder_misses_nothing(tmp_path: Path, kind: str) -> None:
    store, log, recorded = tmp_path / "store", tmp_path / "log", tmp_path / "trace"
    Store.create(str(store))
    base = store.read_bytes()
    run(store, log, kind, str(recorded))
    ops, replayed = pickle.loads(recorded.read_bytes())
    final = store.read_bytes()
    assert replayed == final
    seen = operations(log.read_text(), store)
    assert Trace(base, seen).replay() == final
    mine, outside = shape(ops), shape(seen)
    assert len(mine) > 80
    if kind == "tasks":
        # What threads do at once has no one order.
        assert Counter(mine) == Counter(outside)
        return
    for number, (ours, theirs) in enumerate(zip(mine, outside, strict=False)):
        assert ours == theirs, f"at step {number} of {len(mine)} and {len(outside)}"
    assert len(mine) == len(outside)


def test_nothing_reaches_the_file_but_what_can_be_replayed(tmp_path: Path) -> None:
    """Also where the engine chooses itself what its native thread does, and nothing is recorded."""
    store, log = tmp_path / "store", tmp_path / "log"
    Store.create(str(store))
    base = store.read_bytes()
    run(store, log, "tasks")
    assert Trace(base, operations(log.read_text(), store)).replay() == store.read_bytes()
