"""Work for the crash tests: commits of all kinds against the real engine, on a file that records.

Each commit has a payload, and a tree in which a few keys were put or deleted; what it has to hold is
kept as plain values, so that a state of the file after a crash can be compared with it.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import trio

from commitfs.format.node import NO_ROOT
from commitfs.native import crc32c
from commitfs.store import stage, tail, txn
from commitfs.store import store as store_module
from commitfs.store.committer import GroupCommitter
from commitfs.store.file import StoreFile, open_file
from commitfs.store.make import make_file, new_image
from commitfs.store.puretre2 import EarlierWriter
from commitfs.store.stage import Stager
from commitfs.store.store import Store, Ticket
from commitfs.store.tree import Tree
from tests.support.crash_file import CrashFile, RecordingRealFile, Trace, crash_opener
from tests.support.memory_file import MemoryDisk

KEYS = 160
STEP = 64 << 10
FIRST_TIME = 1_800_000_000_000_000_000


@contextmanager
def short_tail() -> Iterator[None]:
    """Lay the tail, and reserve stages, in steps of 64 KiB, not 1 MiB: both happen often, and a state costs
    less to open."""
    with (
        patch.multiple(tail, STEP=STEP, LOW=STEP // 4, _ZEROS=bytes(STEP)),
        patch.multiple(stage, STEP=STEP, PIECE_LEAST=STEP),
    ):
        yield


@contextmanager
def drawn(seed: int) -> Iterator[None]:
    """Store and session numbers come from a seed, so that a run can be repeated."""
    with patch("secrets.randbits", random.Random(seed).getrandbits):
        yield


@contextmanager
def short_commits(limit: int = 24 << 10) -> Iterator[None]:
    """Stage what goes beyond so many bytes of one commit, not beyond 4 MiB."""
    with (
        patch.multiple(store_module, BYTES_LIMIT=limit),
        patch.multiple(txn, BYTES_LIMIT=limit, _STAGE_WRITE=limit // 2),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes a commit refers to: place in the log, and what has to be there."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Made:
    """What a commit has to hold."""

    id: int
    time_ns: int
    pieces: tuple[Piece, ...]
    contents: dict[bytes, bytes]


@dataclass
class Load:
    """A store under work.  `made` holds every commit placed so far, acknowledged or not."""

    path: Path
    seed: int
    disk: MemoryDisk
    trace: Trace
    trees: bool = True
    opener: Callable[[object, bool], StoreFile] = field(kw_only=True)
    """Opens the file as the engine sees it."""
    earlier: int = 0
    """Newest commit of a file of the earlier format; opening it makes one more."""
    made: dict[int, Made] = field(default_factory=dict)
    store: Store = field(init=False)
    tree: Tree = field(init=False)

    @classmethod
    def on(
        cls,
        path: Path,
        *,
        seed: int,
        trees: bool = True,
        wrap: Callable[[CrashFile], StoreFile] | None = None,
        earlier: int = 0,
    ) -> "Load":
        """Over a copy in memory of the store at `path`, which stays as it is.

        `wrap` puts something between the engine and the recorder.
        """
        contents = path.read_bytes()
        disk, trace = MemoryDisk(contents), Trace(contents)
        record = crash_opener(disk, trace)
        opener = record if wrap is None else lambda path, writable: wrap(record(path, writable))
        return cls(path, seed, disk, trace, trees, opener=opener, earlier=earlier)

    @classmethod
    def on_disk(cls, path: Path, *, seed: int, trees: bool = True) -> "Load":
        """On the store at `path` itself, so that the engine's native thread does its part."""
        trace = Trace(path.read_bytes())

        def opener(name: object, writable: bool) -> StoreFile:
            return RecordingRealFile(open_file(str(name), writable), trace)

        return cls(path, seed, MemoryDisk(), trace, trees, opener=opener)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.contents: dict[bytes, bytes] = {}
        self.clock = FIRST_TIME
        self.trace.ack(self.earlier)
        self.trace.placed(self.earlier + (self.earlier > 0))
        self.store = self._open()
        self.tree = self.store.tree(self.store.head)
        if self.earlier:
            record = self.store.record(self.earlier + 1)
            self.contents = dict(self.tree.scan(b""))
            self.made[record.id] = Made(record.id, record.time_ns, (), dict(self.contents))
            self.trace.ack(record.id)

    def _open(self) -> Store:
        return Store.open(str(self.path), writable=True, opener=self.opener)

    # -- steps -----------------------------------------------------------------------------------

    def place(self, sizes: tuple[int, ...] = (), staged: tuple[Piece, ...] = ()) -> Ticket:
        """Queue one commit with payloads of these sizes."""
        data = [self.random.randbytes(size) for size in sizes]
        puts = self._edit_tree() if self.trees else 0
        begun = self.store.begin(sum(sizes) + (self.tree.estimate() if puts else 0))
        self.trace.placed(int(begun.id))
        pieces = tuple(Piece(begun.add(part), part) for part in data)
        root = self.tree.build(begun.add) if self.trees else NO_ROOT
        self.clock += self.random.choice((1, 1_000_000, -5_000))
        ticket = begun.finish(root=root, time_ns=self.clock)
        record = ticket.record
        self.clock = max(self.clock, record.time_ns)
        made = Made(int(begun.id), record.time_ns, pieces + staged, dict(self.contents))
        self.made[made.id] = made
        return ticket

    def _edit_tree(self) -> int:
        edits = self.random.randint(1, 6)
        for _ in range(edits):
            key = b"key %04d" % self.random.randrange(KEYS)
            if self.random.random() < 0.2:
                assert self.tree.delete(key) == (key in self.contents)
                self.contents.pop(key, None)
            else:
                value = self.random.randbytes(self.random.choice((0, 8, 40, 40, 300)))
                self.tree.put(key, value)
                self.contents[key] = value
        return edits

    def _give_up(self) -> None:
        """Begin a commit and abort it."""
        begun = self.store.begin(3000)
        begun.add(self.random.randbytes(3000))
        begun.abort()

    def flush(self, *tickets: Ticket) -> None:
        """Write what is queued; every commit whose ticket is done counts as acknowledged."""
        self.store.flush()
        for ticket in tickets:
            assert ticket.done
            assert ticket.error is None, ticket.error
            self.trace.ack(int(ticket.record.id))

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()
        self.tree = self.store.tree(self.store.head)

    def commits(self, count: int) -> None:
        """`count` commits: most small, some larger, some in groups, with reopens and aborts between."""
        left = count
        while left > 0:
            draw = self.random.random()
            if draw < 0.02:
                self.reopen()
            elif draw < 0.05:
                self._give_up()
            group = min(left, self.random.randint(2, 5) if draw > 0.85 else 1)
            tickets = [self.place(self._sizes()) for _ in range(group)]
            self.flush(*tickets)
            left -= group

    def _sizes(self) -> tuple[int, ...]:
        draw = self.random.random()
        if draw < 0.1:
            return ()
        if draw < 0.75:
            return (self.random.randint(1, 700),)
        if draw < 0.95:
            return (self.random.randint(700, 4000), self.random.randint(1, 100))
        return (self.random.randint(10_000, 40_000 if draw < 0.99 else 150_000),)

    def surplus(self, count: int) -> None:
        """`count` commits of more bytes than lie behind one record, each in a group with a small one."""
        with short_commits():
            for number in range(count):
                self.flush(self.place((9_000,) * (number % 3 * 2 + 2)), self.place((300,)))

    def everything(self, rounds: int, inline: bool | None = True) -> None:
        """All kinds of work in one run, over and over, each round with a writer of its own."""
        for _ in range(rounds):
            self.commits(self.random.randint(4, 20))
            trio.run(self.staged, 1, inline)
            self.surplus(self.random.randint(1, 3))
            trio.run(self.concurrently, self.random.randint(2, 5), 3, inline)
            self.flush(*[self.place(self._sizes()) for _ in range(self.random.randint(2, 5))])
            self.reopen()

    # -- steps that need an event loop -----------------------------------------------------------

    async def concurrently(self, tasks: int, each: int, inline: bool | None = True) -> None:
        """`tasks` tasks make `each` commits through a group committer, its background task beside."""
        committer = GroupCommitter(self.store, inline=inline)

        async def work() -> None:
            for _ in range(each):
                ticket = self.place(self._sizes())
                await committer.acknowledge(ticket)
                self.trace.ack(int(ticket.record.id))
                for _ in range(self.random.randrange(3)):
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as background:
            await background.start(committer.run)
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(work)
            await committer.drain()
            background.cancel_scope.cancel()

    async def staged(self, count: int, inline: bool | None = True) -> None:
        """`count` commits, each of data put into a stage before, with small ones in between."""
        committer = GroupCommitter(self.store, inline=inline)
        stager = Stager(self.store, committer)
        async with trio.open_nursery() as background:
            await background.start(committer.run)
            for _ in range(count):
                parts = [self.random.randbytes(n * 4096 - 7) for n in (1, self.random.randint(1, 5))]
                pieces = []
                for part in parts:
                    pieces.append(Piece(await stager.put(part), part))
                    await self._commit(committer, ())
                await stager.sync()
                await self._commit(committer, tuple(pieces))
            stager.close()
            await committer.drain()
            background.cancel_scope.cancel()

    async def _commit(self, committer: GroupCommitter, staged: tuple[Piece, ...]) -> None:
        ticket = self.place((50,), staged)
        await committer.acknowledge(ticket)
        self.trace.ack(int(ticket.record.id))


def make_earlier(path: Path, commits: int) -> None:
    """A store of the earlier format with so many commits."""
    make_file(str(path), new_image(8, earlier=True))
    writer = EarlierWriter(str(path))
    for number in range(commits):
        writer.commit([b"commit of the earlier format %d" % number] * 40, time_ns=number)
    writer.close()


def compare(store: Store, made: Made) -> None:
    """The commit is in the store whole."""
    record = store.record(made.id)
    assert record.id == made.id
    assert record.time_ns == made.time_ns
    assert crc32c(store.bytes_of(record)) == record.bytes_crc
    for piece in made.pieces:
        assert store.read(piece.offset, len(piece.data)) == piece.data
    assert dict(store.tree(record).scan(b"")) == made.contents
