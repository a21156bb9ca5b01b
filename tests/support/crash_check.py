"""Is a file that a crash left what it has to be?  (docs/durability.md)

For each state: it opens for reading and for writing; its newest commit is one that may be there, and
not older than what was acknowledged; that commit and all before it are whole; `check` finds nothing;
a further commit and a reopen work, and change nothing below the commit found.  A reader that had the file
open before the crash goes on in it as one that opens it then, also past the further commit.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from commitfs.format.node import NO_ROOT
from commitfs.format.record import LOG_START
from commitfs.store.check import Severity, check_store
from commitfs.store.file import StoreFile
from commitfs.store.store import Store
from tests.support.crash_file import CrashFile, Trace, memory_opener
from tests.support.crash_load import FIRST_TIME, Load, Made, Piece, compare
from tests.support.crash_reader import Follower, Following, compare_newest, head_id, look_after_crash
from tests.support.crash_states import CrashState, Enumerator
from tests.support.memory_file import MemoryDisk

TWO_EVERY = 8
"""In so many states two further commits are made, not one: readers remember those before the newest."""
NEAR = 2
"""Commits below the newest that are compared in every state; all are in every `thorough`-th."""


class Fault(Enum):
    """What can be wrong with a state."""

    LOST = "lost"
    """A commit that was acknowledged is not there, or not whole."""
    HALF_THERE = "half there"
    """A commit that was not acknowledged is there, and not whole."""
    CLOSED = "failed to open"
    WRONG = "otherwise wrong"
    """Among others: damage found where there is none, readers that see something else."""


class CrashFailure(AssertionError):
    """A state is not as it has to be; says which."""

    image: bytes | None = None
    """The file, unless it was found to be wrong as a repetition."""
    fault: Fault = Fault.WRONG


@contextmanager
def blamed(fault: Fault) -> Iterator[None]:
    """An error in the body is a fault of this kind, unless something in it says of which."""
    try:
        yield
    except Exception as exc:
        if not hasattr(exc, "fault"):
            exc.fault = fault  # type: ignore[attr-defined]
        raise


@dataclass
class Checker:
    """Checks states against what was made.

    `states` counts states whose file was opened, `repeats` those whose file had been opened before and
    only had to hold what was acknowledged since, `nested` (in `states` too) those of crashes during
    the recovery from one, and of the commit after it.
    """

    path: Path
    made: dict[int, Made]
    earlier: int = 0
    """Newest commit of the file of the earlier format that the store began as."""
    thorough: int = 16
    destroys: int = 0
    """As the enumerator's, for crashes during a recovery."""
    nest_every: int = 40
    seed: int = 0
    wrap: Callable[[CrashFile], StoreFile] | None = None
    """Stands between the engine and the file whenever a state is opened."""
    following: Following | None = None
    """Readers that have the file open before the crash."""
    tolerate: Callable[[CrashFailure], None] | None = None
    """Gets what is wrong, in place of an exception that ends the run."""
    followed: int = 0
    """States that such a reader looked at."""
    states: int = 0
    repeats: int = 0
    nested: int = 0
    newest: dict[int, int] = field(default_factory=dict)
    """Newest commit found, by digest of the file: of those opened and found right."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @classmethod
    def of(
        cls,
        load: Load,
        *,
        seed: int = 1,
        thorough: int = 16,
        nest_every: int = 40,
        destroys: int = 0,
        tolerate: Callable[[CrashFailure], None] | None = None,
    ) -> "Checker":
        """For the states of a load, with readers that follow it."""
        following = Following(load.path, load.trace, random.Random(seed))
        return cls(
            load.path,
            load.made,
            load.earlier,
            thorough,
            destroys,
            nest_every,
            seed,
            following=following,
            tolerate=tolerate,
        )

    def run(self, states: Iterable[CrashState], limit: int | None = None) -> None:
        """Check states, at most `limit` of them; raises CrashFailure for the first that is wrong."""
        for state in states:
            if limit is not None and self.states >= limit:
                return
            if self.following is not None:
                self.following.advance(state.prefix)
            try:
                self.check(state)
            except Exception as exc:
                failure = CrashFailure(
                    f"after operation {state.prefix}, {state.what}; acknowledged {state.acked}, "
                    f"placed {state.placed}: {type(exc).__name__}: {exc}"
                )
                failure.image = None if state.image is None else bytes(state.image)
                failure.fault = getattr(exc, "fault", Fault.WRONG)
                if self.tolerate is None:
                    raise failure from exc
                self.tolerate(failure)

    def check(self, state: CrashState) -> None:
        if state.image is None or state.digest in self.newest:
            self.repeats += 1
            if state.digest not in self.newest:
                return  # it was found to be wrong before
        else:
            self.states += 1
            self._open_and_compare(bytes(state.image), state.digest, state.acked)
        newest = self.newest[state.digest]
        with blamed(Fault.LOST):
            assert newest >= state.acked, f"commit {newest} is the newest"
        assert newest <= state.placed, f"commit {newest} is the newest"

    def _open_and_compare(self, image: bytes, digest: int, acked: int) -> None:
        thorough = self.random.random() * self.thorough < 1
        with blamed(Fault.CLOSED):
            with_reader = Store.open(str(self.path), opener=memory_opener(MemoryDisk(image)))
        seen = head_id(with_reader)
        aligned = with_reader.align > 8
        end = int(with_reader.published_end)
        with_reader.close()

        disk, trace = MemoryDisk(image), Trace(image)
        trace.ack(acked if aligned else seen)
        trace.placed(seen + (seen == self.earlier > 0))
        with blamed(Fault.CLOSED):
            store = self._open(disk, trace)
        with blamed(Fault.LOST):
            assert store.writable, f"opened read-only: {store.latched}"
        newest = head_id(store)
        # With aligned groups the writer drops the whole commits of a torn group, none acknowledged.
        same = newest == seen or (aligned and acked <= newest < seen)
        # Opening a file of the earlier format makes a commit.
        same = same or newest - 1 == seen == self.earlier > 0
        assert same, f"a reader sees commit {seen}, the writer {newest}"
        first = self.earlier + 1
        for commit in range(first if thorough else max(newest - NEAR, first), newest + 1):
            with blamed(Fault.LOST if commit <= acked else Fault.HALF_THERE):
                compare(store, self.made[commit])
        if thorough:
            assert_sound(store)
        follower = self._follow(bytearray(image), seen, acked)
        end = min(end, int(store.published_end))
        made = dict(self.made)
        for commit in range(newest + 1, newest + 2 + (self.random.random() * TWO_EVERY < 1)):
            made[commit] = commit_once(store, trace, self.random, like=self.made.get(commit))
        store.close()
        assert disk.cache[LOG_START:end] == image[LOG_START:end], "what was committed has changed"
        self._reopen(disk, commit, made, thorough=thorough)
        if follower is not None:
            found = follower.look(disk.cache)
            assert found == commit, f"a reader is at commit {found}, after commit {commit}"
            compare_newest(follower.store, made, commit - newest + 1)
        self.newest[digest] = seen
        if self.nest_every > 0 and self.random.random() * self.nest_every < 1:
            # A reader may still see a whole commit that an aligned store's writer drops, where the further
            # one has its number.
            self._check_nested(trace, made, followed=newest >= seen)

    def _reopen(self, disk: MemoryDisk, newest: int, made: dict[int, Made], *, thorough: bool) -> None:
        """The further commits, up to `newest`, are there."""
        store = self._open(MemoryDisk(disk.cache), Trace(b""))
        with blamed(Fault.LOST):
            assert head_id(store) == newest, "a further commit is gone"
            compare(store, made[newest])
        if thorough:
            assert_sound(store)
        store.close()

    def _follow(self, image: bytearray, seen: int, acked: int) -> Follower | None:
        if self.following is None:
            return None
        self.followed += 1
        follower = self.following.choose()
        look_after_crash(follower, image, seen=seen, acked=acked, made=self.made)
        return follower

    def _open(self, disk: MemoryDisk, trace: Trace) -> Store:
        def opener(path: object, writable: bool) -> StoreFile:
            file = CrashFile(disk, trace, writable=writable)
            return file if self.wrap is None else self.wrap(file)

        return Store.open(str(self.path), writable=True, opener=opener)

    def _check_nested(self, trace: Trace, made: dict[int, Made], *, followed: bool) -> None:
        """A crash during the recovery, or during the commit after it."""
        inner = Checker(
            self.path, made, self.earlier, self.thorough, self.destroys, nest_every=0, wrap=self.wrap
        )
        inner.newest = self.newest  # so that no file counts twice
        if self.following is not None and followed:
            inner.following = Following(self.path, trace, self.random)
        seed = self.random.getrandbits(32)
        inner.run(Enumerator(trace, seed=seed, per_prefix=12, destroys=self.destroys).states())
        self.states += inner.states
        self.nested += inner.states
        self.followed += inner.followed
        self.repeats += inner.repeats


def assert_sound(store: Store) -> None:
    damage = [f for f in check_store(store) if f.severity is Severity.DAMAGE]
    assert not damage, damage


def commit_once(store: Store, trace: Trace, rng: random.Random, like: Made | None = None) -> Made:
    """One more commit on top of what is there.

    Half of the time with payloads as long as those of `like`, the commit that did not survive: what
    came behind that one then lies just where this one ends.
    """
    tree = store.tree(store.head)
    contents = dict(tree.scan(b""))
    sizes = [rng.choice((10, 600, 3000))]
    if like is not None and rng.random() < 0.5:
        sizes = [len(piece.data) for piece in like.pieces]
    payloads = [rng.randbytes(size) for size in sizes]
    data = rng.randbytes(10)
    if store.head is not None and store.head.root != NO_ROOT:
        tree.put(b"after", data)
        contents[b"after"] = data
    txn = store.begin(sum(sizes) + tree.estimate())
    trace.placed(int(txn.id))
    pieces = tuple(Piece(txn.add(payload), payload) for payload in payloads)
    root = tree.build(txn.add) if tree.dirty else NO_ROOT
    ticket = txn.finish(root=root, time_ns=FIRST_TIME)
    store.flush()
    assert ticket.done
    assert ticket.error is None
    trace.ack(int(txn.id))
    return Made(int(txn.id), ticket.record.time_ns, pieces, contents)


__all__ = ["Checker", "CrashFailure", "CrashFile", "Fault", "assert_sound", "commit_once", "head_id"]
