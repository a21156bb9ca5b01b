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
- With `destroys` the medium is one without powersafe overwrite: an interrupted write may change any byte
  of the units of so many bytes that it touches, whatever of it arrived.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tests.support.crash_file import Ack, Allocate, Lost, Placed, Punch, Resize, Sync, SyncRange, Trace, Write
from tests.support.crash_medium import SECTOR, Medium, Piece, PieceKind, is_size, overlaps, uncovered

MARKS = 2
"""A trace begins with so many marks, which say what was acknowledged and placed before it."""
EXHAUSTIVE = 10
COARSE, EDGE = 64 << 10, 4 << 10
"""The zeros of a tail are cut at sectors for EDGE bytes at both ends, and in runs of COARSE between:
what is missing of them is more zeros, or what lay there, in any case."""


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

    `destroys` is the size in bytes of the units an interrupted write may destroy, 0: it destroys nothing.
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
        destroys: int = 0,
    ) -> None:
        self.trace = trace
        self.per_prefix = per_prefix
        self.exhaustive = exhaustive
        self.start = start
        self.destroys = destroys
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
        pieces += self._garbage(pieces)
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

    def _garbage(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What may have become of the units that the newest writes under way touch: of the first and the
        last of each, where others are neighbours, and of one in between."""
        unit = self.destroys
        writes: dict[int, tuple[int, int]] = {}
        for piece in pieces if unit else ():
            if piece.kind is PieceKind.DATA:
                lo, hi = writes.get(piece.seq, (piece.offset, piece.end))
                writes[piece.seq] = min(lo, piece.offset), max(hi, piece.end)
        found: dict[tuple[int, int], Piece] = {}
        for seq, (lo, hi) in list(writes.items())[-3:]:
            first, last = lo // unit, (hi - 1) // unit
            for at in {first, self.random.randint(first, last), last}:
                start, end = at * unit, (at + 1) * unit
                spans = ((start, min(end, lo)), (max(start, hi), end), (start, end))
                flipped = self.random.randrange(start, end)
                for begin, stop in (*spans, (flipped, flipped + 1)):
                    if begin < stop:
                        data = self.random.randbytes(stop - begin)
                        found[begin, stop] = Piece(seq, PieceKind.GARBAGE, begin, stop - begin, data)
        # An operation of their own, the newest, whose ends are tried in all combinations.
        return [replace(piece, seq=len(self.trace.ops)) for piece in found.values()]

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


def describe(pieces: Sequence[Piece], kept: Sequence[int], *, stale: bool) -> str:
    names = [f"{pieces[i].kind.name.lower()}@{pieces[i].offset}" for i in kept]
    if len(names) > 12:
        names = [*names[:6], "…", *names[-5:]]
    return f"{len(kept)} of {len(pieces)} pieces{' (stale space)' if stale else ''}: {' '.join(names)}"
