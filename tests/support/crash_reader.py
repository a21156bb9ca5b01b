"""Readers in other processes, beside the writer and after its crash (P8, docs/durability.md).

A reader sees what the kernel has of the file: all that was written, synced or not, and of a write under
way any part.  `Watch` goes through a trace without a crash and looks at every such view.  `Following`
goes through it beside the enumerator and takes readers, with all they remember, over to the file that a
crash left: what they had seen, and no writer has found torn, must still be there.
"""

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commitfs.errors import CorruptError
from commitfs.format.record import RECORD_SIZE, Record
from commitfs.store.store import Store
from tests.support.crash_file import Ack, Placed, Trace, Write, make, memory_opener
from tests.support.crash_load import Made, compare
from tests.support.crash_medium import SECTOR
from tests.support.memory_file import MemoryDisk, MemoryFile

FAR_EVERY = 8
"""Operations, on average, between two looks of a reader that looks seldom."""
ALL_SETS = 4
"""Up to so many sectors of a write under way, all sets of them are looked at."""
SETS = 12
"""Sets looked at of a longer one."""


def head_id(store: Store) -> int:
    return 0 if store.head is None else int(store.head.id)


class Follower:
    """A reader that has the file open, and looks again when it is told to."""

    def __init__(self, path: Path, view: bytearray) -> None:
        self.disk = MemoryDisk()
        self.disk.cache = self.home = view
        self.store = Store.open(str(path), opener=memory_opener(self.disk))

    @property
    def head(self) -> Record | None:
        return self.store.head

    def look(self, view: bytearray | None = None) -> int:
        """Look at `view`, at the view it came from by default; the newest commit it finds there."""
        self.disk.cache = self.home if view is None else view
        self.store.refresh()
        return head_id(self.store)

    def go_home(self) -> None:
        if self.disk.cache is not self.home:
            self.look()


class Following:
    """Two readers beside a writer: one looks after every operation, one seldom."""

    def __init__(self, path: Path, trace: Trace, rng: random.Random) -> None:
        self.trace = trace
        self.random = rng
        self.view = bytearray(trace.base)
        self.made = 0
        self.near = Follower(path, self.view)
        self.far = Follower(path, bytearray(self.view))

    def advance(self, prefix: int) -> None:
        """The first `prefix` operations are made, and the readers have looked at what they left."""
        if self.made == prefix:
            return
        for op in self.trace.ops[self.made : prefix]:
            make(op, self.view)
            if self.random.random() * FAR_EVERY < 1:
                self.far.home = bytearray(self.view)
                self.far.look()
        self.made = prefix
        self.near.look()

    def choose(self) -> Follower:
        """One of the two, with what it saw before the crash."""
        follower = self.near if self.random.random() < 0.7 else self.far
        follower.go_home()
        return follower


def look_after_crash(
    follower: Follower, image: bytearray, *, seen: int, acked: int, made: Mapping[int, Made]
) -> None:
    """A reader looks at the file a crash left; `seen` is the newest commit one finds that opens it there.

    It finds the same.  Only where its head was not acknowledged, and of that the record has remained, may
    it stay there, until a writer clears the end; what it then says of torn commits is that they are
    damaged.
    """
    before = follower.head
    newest = follower.look(image)
    if newest == seen:
        compare_newest(follower.store, made)
        return
    assert before is not None, f"commit {newest}, not {seen}, is the newest to a reader that had seen none"
    remained = image[before.offset : before.offset + RECORD_SIZE][-4:] == before.crc.to_bytes(4, "little")
    assert before.id > acked, f"commit {newest}, not {seen}, is the newest to a reader at {before.id}"
    assert remained, f"a reader stays at commit {before.id}, whose record is gone"
    assert newest >= before.id > seen
    store, wanted = follower.store, made[newest]
    record = store.record(newest)
    assert record.time_ns == wanted.time_ns
    with suppress(CorruptError):
        store.read_checked(record.bytes_offset, record.length, record.bytes_crc)
        for piece in wanted.pieces:
            assert store.read(piece.offset, len(piece.data)) == piece.data
    with suppress(CorruptError):
        assert dict(store.tree(record).scan(b"")) == wanted.contents


def compare_newest(store: Store, made: Mapping[int, Made], count: int = 1) -> None:
    newest = head_id(store)
    for commit in range(newest, max(newest - count, 0), -1):
        if commit in made:  # else of the earlier format
            compare(store, made[commit])


class Moving(MemoryFile):
    """A file to which pieces are written while it is read: before each read some arrive."""

    def __init__(self, view: bytearray, pieces: list[Write], rng: random.Random) -> None:
        disk = MemoryDisk()
        disk.cache = view
        super().__init__(disk, writable=False)
        self.pieces = pieces
        self.random = rng

    def pread(self, length: int, offset: int) -> bytes:
        self.arrive(self.random.choice((0, 0, 1, 2)))
        return super().pread(length, offset)

    def arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.pieces))):
            make(self.pieces.pop(), self.disk.cache)


@dataclass
class Watch:
    """Looks at every view of a run without a crash.  `views` counts them, `moving` (in it too) those that
    changed while they were read."""

    path: Path
    made: Mapping[int, Made]
    seed: int = 0
    acked: int = 0
    placed: int = 0
    views: int = 0
    moving: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def run(self, trace: Trace) -> None:
        view = bytearray(trace.base)
        follower = Follower(self.path, view)
        for number, op in enumerate(trace.ops):
            try:
                self._look_at(op, view, follower)
            except Exception as exc:
                raise AssertionError(
                    f"a reader beside the writer, at operation {number}: {type(exc).__name__}: {exc}"
                ) from exc

    def _look_at(self, op: object, view: bytearray, follower: Follower) -> None:
        match op:
            case Ack(commit):
                self.acked = max(self.acked, commit)
                return
            case Placed(commit):
                self.placed = max(self.placed, commit)
                return
            case Write():
                self._part_of(op, view, follower)
            case _:
                make(op, view)  # type: ignore[arg-type]
        newest = self._follow(follower)
        assert self._open(view) == newest, "a reader that follows sees another commit than one that opens"

    def _part_of(self, op: Write, view: bytearray, follower: Follower) -> None:
        """The write arrives: any part of it, then one sector after the other, while it is read too."""
        sectors = split(op)
        for some in self._sets(len(sectors)):
            part = bytearray(view)
            for at in some:
                make(sectors[at], part)
            self._open(part)
        part = bytearray(view)
        moving = Moving(part, self.random.sample(sectors, len(sectors)), self.random)
        self._open(part, moving)
        self.moving += 1
        order = list(range(len(sectors)))
        if self.random.random() < 0.5:
            self.random.shuffle(order)
        stops = set(self.random.sample(order, min(len(order), 3)))
        for at in order:
            make(sectors[at], view)
            if at in stops:
                self._follow(follower)

    def _sets(self, count: int) -> list[list[int]]:
        if count <= ALL_SETS:
            return [[at for at in range(count) if chosen >> at & 1] for chosen in range(1 << count)]
        cuts = self.random.sample(range(count), min(count, SETS // 2))
        sets = [list(range(cut)) for cut in cuts]
        for _ in range(SETS - len(sets)):
            share = self.random.choice((0.1, 0.5, 0.9))
            sets.append([at for at in range(count) if self.random.random() < share])
        return sets

    def _open(self, view: bytearray, file: MemoryFile | None = None) -> int:
        """What a reader sees that opens the file now."""
        self.views += 1
        if file is None:
            disk = MemoryDisk()
            disk.cache = view
            file = MemoryFile(disk, writable=False)
        store = Store.open(str(self.path), opener=lambda path, writable: file)
        self._check(store)
        return head_id(store)

    def _follow(self, follower: Follower) -> int:
        before = head_id(follower.store)
        self.views += 1
        newest = follower.look()
        assert newest >= before, f"a reader went back from commit {before} to {newest}"
        self._check(follower.store)
        return newest

    def _check(self, store: Store) -> None:
        newest = head_id(store)
        assert self.acked <= newest <= self.placed, f"commit {newest} is the newest"
        compare_newest(store, self.made, 2)
        if newest > 2 and self.random.random() < 0.1:
            older = self.random.randrange(1, newest)
            if older in self.made:
                compare(store, self.made[older])


def split(op: Write) -> list[Write]:
    """The sectors of a write."""
    at, end = op.offset, op.offset + len(op.data)
    pieces = []
    while at < end:
        stop = min((at // SECTOR + 1) * SECTOR, end)
        pieces.append(Write(at, op.data[at - op.offset : stop - op.offset], op.stage))
        at = stop
    return pieces


__all__ = [
    "Follower",
    "Following",
    "Watch",
    "compare_newest",
    "head_id",
    "look_after_crash",
    "split",
]
