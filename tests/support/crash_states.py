"""From a trace to the files a crash may leave: for every prefix, what is durable and any part of the rest.

The model, and what it assumes of the medium (docs/durability.md says why):

- A write not yet covered by a sync is split at 512-byte sectors; any set of these pieces may have
  reached the medium, in any order.  A sector is written whole or not at all, and a write changes no
  byte outside its range (powersafe overwrite).
- Changes of the size, and punched holes, are pieces of their own: a size may change without the data
  written there, and the other way round.  Space the file grows over, by anything but an allocation,
  may read as zeros or as what lay there before; both are tried.
- A range sync makes durable the data pieces in its range, and the changes of size and punched holes
  only as far as they are needed to read these back.  A stage sync covers stage writes only.
- What a failed sync was to write stays open for ever, unless it is written and synced again.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import combinations

from tests.support.crash_file import Ack, Allocate, Lost, Placed, Punch, Resize, Sync, SyncRange, Trace, Write

SECTOR = 512
MARKS = 2
"""A trace begins with so many marks, which say what was acknowledged and placed before it."""
EXHAUSTIVE = 10
COARSE, EDGE = 64 << 10, 4 << 10
"""The zeros of a tail are cut at sectors for EDGE bytes at both ends, and in runs of COARSE between:
what is missing of them is more zeros, or what lay there, in any case."""


class PieceKind(Enum):
    DATA = auto()
    RESIZE = auto()
    GROW = auto()
    ALLOCATE = auto()
    PUNCH = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that reaches the medium whole or not at all.

    `offset` is the place of data or of a hole, and the size for RESIZE, GROW and ALLOCATE; `length`
    the length of data or of a hole.  `seq` numbers the operation it comes from.
    """

    seq: int
    kind: PieceKind
    offset: int
    length: int = 0
    data: bytes = b""
    stage: bool = False
    limbo: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.length


class Medium:
    """What the medium holds for sure, in two readings of space the file only grew over.

    `stale` False: that space is zeros; True: it keeps what lay there, or `filler` where nothing did.
    `digest` names the contents: equal files have equal ones.  It is kept up sector by sector, so
    that naming a state costs what its pieces touch and not the whole file.
    """

    def __init__(self, base: bytes, *, stale: bool) -> None:
        self.raw = bytearray(base)
        self.size = len(base)
        self.stale = stale
        self.filler = base[8192 : 8192 + 65536].ljust(SECTOR, b"\xa5")
        self._hashes: dict[int, int] = {}
        self._digest = 0
        self._touched = set(range(-(-self.size // SECTOR)))
        self._undo: list[tuple[int, bytes, int]] = []
        self.commit()

    def apply(self, piece: Piece) -> None:
        old = self.size
        match piece.kind:
            case PieceKind.DATA:
                self._put(piece.offset, piece.data)
            case PieceKind.PUNCH:
                end = min(piece.end, len(self.raw))
                if end > piece.offset:
                    self._put(piece.offset, bytes(end - piece.offset))
            case PieceKind.RESIZE if piece.offset < old:
                self._undo.append((0, b"", old))
                self.size = piece.offset
            case _ if piece.offset > old:
                if piece.kind is PieceKind.ALLOCATE or not self.stale:
                    self._put(old, bytes(piece.offset - old))
                self._room(piece.offset)
                self._undo.append((0, b"", old))
                self.size = piece.offset
            case _:
                pass
        lo, hi = sorted((old, self.size))
        if lo < hi:
            self._touched.update(range(lo // SECTOR, (hi - 1) // SECTOR + 1))

    def commit(self) -> None:
        """Let stand what was applied."""
        self._digest = self._digest_with(self._hashes)
        self._touched.clear()
        self._undo.clear()

    def revert(self) -> None:
        """Undo what was applied since the last commit."""
        for offset, before, size in reversed(self._undo):
            self.raw[offset : offset + len(before)] = before
            self.size = size
        self._undo.clear()
        self._touched.clear()

    def digest(self) -> int:
        return hash((self._digest_with({}), self.size))

    def image(self) -> bytearray:
        return self.raw[: self.size]

    def _put(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self._room(end)
        self._undo.append((offset, bytes(self.raw[offset:end]), self.size))
        self.raw[offset:end] = data
        self._touched.update(range(offset // SECTOR, (end - 1) // SECTOR + 1))

    def _room(self, end: int) -> None:
        missing = end - len(self.raw)
        if missing > 0:
            if self.stale:
                self.raw += (self.filler * (missing // len(self.filler) + 1))[:missing]
            else:
                self.raw += bytes(missing)

    def _digest_with(self, hashes: dict[int, int]) -> int:
        """The digest; the hashes of the sectors touched since the last commit go into `hashes`."""
        digest = self._digest
        for sector in self._touched:
            start = sector * SECTOR
            data = bytes(self.raw[start : min(start + SECTOR, self.size)]).rstrip(b"\0")
            digest ^= self._hashes.get(sector, 0)
            hashes[sector] = hash((sector, data)) if data else 0
            digest ^= hashes[sector]
        return digest


@dataclass(frozen=True, slots=True)
class CrashState:
    """One file a crash may leave, after the first `prefix` operations.

    Every commit up to `acked` has to be in it, and none above `placed`.  `low` is the lowest log
    offset, at or above 8192, at which anything is open.  `image` is None if the same file, by
    `digest`, was yielded before.  `what` says which pieces were kept.
    """

    prefix: int
    acked: int
    placed: int
    low: int
    digest: int
    image: bytearray | None
    what: str


class Enumerator:
    """The crash states of a trace.

    `per_prefix` bounds the choices tried at one prefix when there are more than `exhaustive` open
    pieces; states of prefixes before `start` are left out.  `prefixes` and `choices` (of pieces, in one
    reading of grown space or two) count what was gone through, `seen` the digests of the files.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        seed: int = 0,
        per_prefix: int = 96,
        exhaustive: int = EXHAUSTIVE,
        start: int = MARKS,
    ) -> None:
        self.trace = trace
        self.per_prefix = per_prefix
        self.exhaustive = exhaustive
        self.start = start
        self.random = random.Random(seed)
        self.media = (Medium(trace.base, stale=False), Medium(trace.base, stale=True))
        self.pending: list[Piece] = []
        self.acked = 0
        self.placed = 0
        self.choices = 0
        self.prefixes = 0
        self.seen: set[int] = set()

    def states(self) -> Iterator[CrashState]:
        for prefix in range(len(self.trace.ops) + 1):
            if prefix:
                self._advance(prefix - 1)
            if prefix >= self.start:
                self.prefixes += 1
                yield from self._states_here(prefix)

    # -- what an operation changes ---------------------------------------------------------------

    def _advance(self, seq: int) -> None:
        op = self.trace.ops[seq]
        match op:
            case Write():
                self._add_write(seq, op)
            case Resize(size):
                self.pending.append(Piece(seq, PieceKind.RESIZE, size))
            case Allocate(offset, length):
                self.pending.append(Piece(seq, PieceKind.ALLOCATE, offset + length))
            case Punch(offset, length):
                self.pending.append(Piece(seq, PieceKind.PUNCH, offset, length))
            case Sync(upto, stage):
                self._settle([p for p in self.pending if p.seq < upto and (p.stage or not stage)])
            case SyncRange(offset, length, upto):
                self._sync_range(offset, offset + length, upto)
            case Lost(offset, length, upto):
                self.pending = [
                    replace(p, limbo=True) if p.seq < upto and overlaps(p, offset, offset + length) else p
                    for p in self.pending
                ]
            case Ack(commit):
                self.acked = max(self.acked, commit)
            case Placed(commit):
                self.placed = max(self.placed, commit)

    def _add_write(self, seq: int, op: Write) -> None:
        at, end = op.offset, op.offset + len(op.data)
        self.pending.append(Piece(seq, PieceKind.GROW, end, stage=op.stage))
        coarse = len(op.data) > COARSE and not any(op.data)
        while at < end:
            inside = coarse and op.offset + EDGE <= at <= end - EDGE - COARSE
            stop = at + COARSE if inside else min((at // SECTOR + 1) * SECTOR, end)
            data = op.data[at - op.offset : stop - op.offset]
            self.pending.append(Piece(seq, PieceKind.DATA, at, stop - at, data, op.stage))
            at = stop

    def _sync_range(self, lo: int, hi: int, upto: int) -> None:
        done = [
            p
            for p in self.pending
            if p.seq < upto and p.kind in (PieceKind.DATA, PieceKind.PUNCH) and overlaps(p, lo, hi)
        ]
        sizes = [p for p in self.pending if p.seq < upto and is_size(p)]
        # A change of size is durable with the range if the range cannot be read back without it.
        if self.media[0].size < hi or any(p.offset < hi for p in sizes if p.kind is PieceKind.RESIZE):
            done += sizes
        self._settle(done)

    def _settle(self, done: Sequence[Piece]) -> None:
        """Make pieces durable, in the order they were made, and forget what they overwrote."""
        chosen = {id(p) for p in done if not p.limbo}
        settled = [p for p in self.pending if id(p) in chosen]
        self.pending = [p for p in self.pending if id(p) not in chosen]
        for medium in self.media:
            for piece in settled:
                medium.apply(piece)
            medium.commit()
        if settled and any(p.seq < settled[-1].seq for p in self.pending):
            self._forget_overwritten(settled)
        size = self.media[0].size
        # Growth to no more than the size for sure changes nothing, unless a cut may come first.
        if not any(p.kind is PieceKind.RESIZE for p in self.pending):
            self.pending = [
                p
                for p in self.pending
                if p.kind not in (PieceKind.GROW, PieceKind.ALLOCATE) or p.offset > size
            ]

    def _forget_overwritten(self, settled: Sequence[Piece]) -> None:
        lo = min(p.offset for p in settled)
        hi = max(p.end for p in settled)
        near = [p for p in self.pending if overlaps(p, lo, hi)]
        for piece in settled if near else ():
            self.pending = [rest for old in self.pending for rest in uncovered(old, piece)]

    # -- choices of pieces -----------------------------------------------------------------------

    def _states_here(self, prefix: int) -> Iterator[CrashState]:
        size = self.media[0].size
        cut = any(p.kind is PieceKind.RESIZE for p in self.pending)
        pieces = [p for p in self.pending if cut or not (is_size(p) and p.offset <= size)]
        grows = any(p.kind in (PieceKind.GROW, PieceKind.RESIZE) for p in pieces)
        stale_matters = grows or self.media[0].digest() != self.media[1].digest()
        low = min((max(p.offset, 8192) for p in pieces if is_size(p) or p.end > 8192), default=1 << 62)
        for kept in self._choices(pieces):
            self.choices += 1
            for medium in self.media if stale_matters else self.media[:1]:
                for index in kept:
                    medium.apply(pieces[index])
                digest = medium.digest()
                image = None if digest in self.seen else medium.image()
                medium.revert()
                self.seen.add(digest)
                what = describe(pieces, kept, stale=medium.stale)
                yield CrashState(prefix, self.acked, self.placed, low, digest, image, what)

    def _choices(self, pieces: Sequence[Piece]) -> Iterator[tuple[int, ...]]:
        """Index tuples, ascending, each at most once."""
        count = len(pieces)
        if count <= self.exhaustive:
            for wanted in range(count + 1):
                yield from combinations(range(count), wanted)
            return
        everything = tuple(range(count))
        seen: set[tuple[int, ...]] = set()
        for kept in self._sampled(pieces, everything):
            if len(seen) >= self.per_prefix:
                return
            if kept not in seen:
                seen.add(kept)
                yield kept

    def _sampled(self, pieces: Sequence[Piece], everything: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield ()
        yield everything
        # The newest operation's first and last pieces decide most; the older ones all there or all not.
        newest = [i for i in everything if pieces[i].seq == pieces[-1].seq]
        edge = newest if len(newest) <= 4 else newest[:2] + newest[-2:]
        older = everything[: newest[0]]
        middle = tuple(i for i in newest if i not in edge)
        for wanted in range(len(edge) + 1):
            for some in combinations(edge, wanted):
                yield (*older, *sorted((*middle, *some)))
                yield tuple(sorted(some))
        spots = self._spots(everything)
        for i in spots:
            yield everything[:i]
            yield (i,)
            yield everything[:i] + everything[i + 1 :]
        for _ in range(2 * self.per_prefix):
            share = self.random.choice((0.1, 0.5, 0.9))
            yield tuple(i for i in everything if self.random.random() < share)

    def _spots(self, everything: tuple[int, ...]) -> list[int]:
        """Where to cut: everywhere if the bound allows it, else at the ends and at random."""
        room = max(4, self.per_prefix // 5)
        if len(everything) <= room:
            return list(everything)
        ends = [*everything[:2], *everything[-2:]]
        return ends + self.random.sample(everything[2:-2], room - 4)


def is_size(piece: Piece) -> bool:
    return piece.kind in (PieceKind.RESIZE, PieceKind.GROW, PieceKind.ALLOCATE)


def overlaps(piece: Piece, lo: int, hi: int) -> bool:
    return not is_size(piece) and piece.offset < hi and piece.end > lo


def uncovered(old: Piece, new: Piece) -> list[Piece]:
    """What remains of a piece when a later one is durable."""
    if old.seq >= new.seq or not overlaps(old, new.offset, new.end) or is_size(new):
        return [old]
    rest = []
    for lo, hi in ((old.offset, new.offset), (new.end, old.end)):
        if lo < hi:
            data = old.data[lo - old.offset : hi - old.offset]
            rest.append(replace(old, offset=lo, length=hi - lo, data=data))
    return rest


def describe(pieces: Sequence[Piece], kept: Sequence[int], *, stale: bool) -> str:
    names = [f"{pieces[i].kind.name.lower()}@{pieces[i].offset}" for i in kept]
    if len(names) > 12:
        names = [*names[:6], "…", *names[-5:]]
    return f"{len(kept)} of {len(pieces)} pieces{' (stale space)' if stale else ''}: {' '.join(names)}"
