"""Each single call of a run fails in turn: nothing acknowledged is lost, nothing false is acknowledged."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from commitfs.errors import CommitfsError, ReadOnlyError
from commitfs.store.store import Store, Ticket
from tests.support.crash_check import Checker, head_id
from tests.support.crash_file import Ack, CrashFile, Trace, crash_opener
from tests.support.crash_load import Load, compare, short_tail
from tests.support.crash_states import Enumerator
from tests.support.failing_file import LOOKS, READS, SYNCS, WRITES, FailingFile, Faults, Kind
from tests.support.memory_file import MemoryDisk

COMMITS = 36


@pytest.fixture(autouse=True)
def _short_tail() -> Iterator[None]:
    with short_tail():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    Store.create(str(path))
    return path


class FaultyRun:
    """A load whose file has `faults`; what it was told about each commit is kept."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.faults = faults
        self.tickets: list[Ticket] = []
        self.refused: Exception | None = None
        self.load = Load.on(path, seed=41, wrap=self.wrap)

    def wrap(self, file: CrashFile) -> FailingFile:
        return FailingFile(file, self.faults)

    def go(self) -> None:
        """Commit until all are made or the store refuses."""
        load = self.load
        try:
            while len(self.tickets) < COMMITS:
                for _ in range(3 if len(self.tickets) % 5 == 0 else 1):
                    self.tickets.append(load.place(load._sizes()))
                load.store.flush()
                self._acknowledge()
        except (OSError, CommitfsError) as exc:
            self.refused = exc
        self._acknowledge()

    def finish(self) -> None:
        """Save what is queued, now that there is room."""
        self.load.store.flush()
        self._acknowledge()

    def close(self) -> None:
        try:
            self.load.store.close()
        except (OSError, CommitfsError) as exc:
            self.refused = exc
        self._acknowledge()

    def _acknowledge(self) -> None:
        for ticket in self.tickets:
            if ticket.done:
                self.load.trace.ack(int(ticket.record.id))

    @property
    def acknowledged(self) -> int:
        return max((int(ticket.record.id) for ticket in self.tickets if ticket.done), default=0)


def check_reopened(load: Load, at_least: int) -> int:
    """Opened again without a crash, over whatever a failed sync left in the cache: the newest commit."""
    store = Store.open(str(load.path), writable=True, opener=crash_opener(load.disk, Trace(b"")))
    newest = head_id(store)
    assert newest >= at_least
    load.disk.drop_cache()
    for commit in range(1, newest + 1):
        compare(store, load.made[commit])
    store.close()
    return newest


def calls_of_a_run(path: Path, names: frozenset[str]) -> int:
    run = FaultyRun(path, Faults(names=names))
    opened = run.faults.calls
    run.go()
    assert run.refused is None
    run.close()
    assert run.faults.calls > opened
    return run.faults.calls


@pytest.mark.parametrize(
    ("kind", "code", "names"),
    [
        pytest.param(Kind.LOST, errno.EIO, SYNCS, id="lost"),
        pytest.param(Kind.HALF_LOST, errno.EIO, SYNCS, id="half lost"),
        pytest.param(Kind.LOST, errno.ENOSPC, SYNCS, id="lost for want of room"),
        pytest.param(Kind.LOST, errno.EINTR, SYNCS, id="interrupted"),
        pytest.param(Kind.ERROR, errno.EIO, WRITES, id="not written"),
    ],
)
def test_a_failed_sync_latches_and_loses_nothing_acknowledged(
    path: Path, kind: Kind, code: int, names: frozenset[str]
) -> None:
    """So does a write that fails in any other way than for want of room."""
    first = opening_calls(path, names)
    total = calls_of_a_run(path, names)
    assert total - first > 25
    latched = 0
    for at in range(first + 1, total + 1):
        run = FaultyRun(path, Faults(kind, code, at, names))
        run.go()
        # Room that cannot be allocated is refused, and nothing was written.
        assert (run.load.store.latched is not None) == (run.faults.hit not in ([], ["allocate"]))
        if run.load.store.latched is not None:
            latched += 1
            with pytest.raises(ReadOnlyError):
                run.load.store.begin(10)
        acknowledged = run.acknowledged
        run.close()
        check_reopened(run.load, acknowledged)
    assert latched > 20


@pytest.mark.parametrize("kind", [Kind.LOST, Kind.HALF_LOST])
def test_a_crash_after_a_failed_sync_loses_nothing_acknowledged(path: Path, kind: Kind) -> None:
    first, total = opening_calls(path, SYNCS), calls_of_a_run(path, SYNCS)
    states = 0
    for at in range(first + 1, total + 1, 3):
        run = FaultyRun(path, Faults(kind, errno.EIO, at, SYNCS))
        run.go()
        run.close()
        checker = Checker(path, run.load.made, nest_every=0)
        ops = len(run.load.trace.ops)
        checker.run(Enumerator(run.load.trace, per_prefix=16, start=max(0, ops - 12)).states())
        states += checker.states
    assert states > 300


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_lack_of_room_loses_nothing_and_passes(path: Path, code: int, lasting: bool) -> None:
    first, total = opening_calls(path, WRITES), calls_of_a_run(path, WRITES)
    hit = 0
    for at in range(first + 1, total + 1):
        run = FaultyRun(path, Faults(Kind.ERROR, code, at, WRITES, lasting))
        run.go()
        hit += bool(run.faults.hit)
        assert run.load.store.latched is None, run.load.store.latched
        acknowledged = run.acknowledged
        run.faults.heal()
        run.finish()
        assert all(ticket.done for ticket in run.tickets)
        assert run.acknowledged >= acknowledged
        run.go()
        made = int(run.tickets[-1].record.id)
        assert run.acknowledged == made
        run.close()
        assert check_reopened(run.load, made) == made
    assert hit > 20


def test_a_crash_after_a_lack_of_room_loses_nothing_acknowledged(path: Path) -> None:
    first, total = opening_calls(path, WRITES), calls_of_a_run(path, WRITES)
    states = 0
    for at in range(first + 1, total + 1, 4):
        run = FaultyRun(path, Faults(Kind.ERROR, errno.ENOSPC, at, WRITES))
        run.go()
        run.faults.heal()
        run.finish()
        run.close()
        checker = Checker(path, run.load.made, nest_every=0)
        checker.run(Enumerator(run.load.trace, per_prefix=12).states(), limit=150)
        states += checker.states
    assert states > 500


@pytest.mark.parametrize(
    ("kind", "code", "names"),
    [
        pytest.param(Kind.ERROR, errno.EIO, READS, id="read"),
        pytest.param(Kind.ERROR, errno.ENOMEM, READS, id="no memory to read"),
        pytest.param(Kind.SHORT, errno.EIO, READS, id="short read"),
        pytest.param(Kind.ERROR, errno.EIO, LOOKS, id="look"),
    ],
)
def test_a_failure_at_opening_harms_nothing(path: Path, kind: Kind, code: int, names: frozenset[str]) -> None:
    run = FaultyRun(path, Faults())
    run.go()  # and no close, so that there is something to walk
    image = bytes(run.load.disk.cache)
    probe = Faults(names=names)
    open_on(path, image, probe).close()
    assert probe.calls > 3
    refused = 0
    for at in range(1, probe.calls + 1):
        disk = MemoryDisk(image)
        try:
            store = open_on(path, image, Faults(kind, code, at, names), disk)
        except (OSError, CommitfsError):
            refused += 1
        else:
            store.close()
        opened = Store.open(str(path), writable=True, opener=crash_opener(disk, Trace(b"")))
        assert head_id(opened) == run.acknowledged
        for commit in range(1, head_id(opened) + 1):
            compare(opened, run.load.made[commit])
        opened.close()
    assert refused or kind is Kind.SHORT


def opening_calls(path: Path, names: frozenset[str]) -> int:
    return FaultyRun(path, Faults(names=names)).faults.calls


def open_on(path: Path, image: bytes, faults: Faults, disk: MemoryDisk | None = None) -> Store:
    record = crash_opener(disk or MemoryDisk(image), Trace(b""))
    return Store.open(
        str(path), writable=True, opener=lambda name, writable: FailingFile(record(name, writable), faults)
    )


@pytest.mark.parametrize("work", ["concurrently", "staged"])
@pytest.mark.parametrize(
    ("kind", "code", "names"),
    [
        pytest.param(Kind.LOST, errno.EIO, SYNCS, id="lost"),
        pytest.param(Kind.ERROR, errno.EIO, SYNCS | WRITES, id="error"),
        pytest.param(Kind.ERROR, errno.ENOSPC, WRITES, id="no room"),
    ],
)
def test_faults_under_tasks(path: Path, work: str, kind: Kind, code: int, names: frozenset[str]) -> None:
    """The same through the group committer, its background task and the stager."""

    def run(at: int) -> tuple[Faults, Load, bool]:
        faults = Faults(kind, code, 0, names)
        load = Load.on(path, seed=42, wrap=lambda file: FailingFile(file, faults))
        faults.calls, faults.at = 0, at
        failed = False
        try:
            if work == "staged":
                trio.run(load.staged, 2)
            else:
                trio.run(load.concurrently, 4, 8)
            load.store.close()
        except* (OSError, CommitfsError):
            failed = True
        faults.heal()
        return faults, load, failed

    total = run(0)[0].calls
    assert total > 8
    failures = 0
    for at in range(1, total + 1):
        _, load, failed = run(at)
        failures += failed
        acknowledged = max(op.commit for op in load.trace.ops if isinstance(op, Ack))
        assert check_reopened(load, acknowledged) >= acknowledged
    assert failures > (0 if code == errno.ENOSPC else 3)
