"""Damage a store in every way there is: ``python -m tests.torture.damage``.

A store of some 50 commits is damaged, again and again, each time in one way.  Then every commit is looked
up, and every path read of each that has a byte in the damaged range, and of one in `--sample` of the
others; it is checked; the live tree is mounted for writing and read; each `--salvage`th time it is
salvaged, and all of the new store read and checked.  A line for each kind of damage tells how many were
tried, found by `check`, and wrong.  Ends with exit code 1 if anything was.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import trio

from commitfs.format.record import RECORD_SIZE
from tests.support.damage import Original, Ranges, original, used_bytes
from tests.support.damage_judge import Verdict, judge, mounted, salvaged

TO_THE_END = 1 << 62
METADATA = 5000
"""A range of more bytes than this is contents, of which a sample is taken."""


class Damage(NamedTuple):
    kind: str
    image: bytes
    changed: Ranges


class Patch(NamedTuple):
    """Bytes put in place of others."""

    offset: int
    data: bytes


def patched(made: Original, kind: str, *patches: Patch) -> Damage:
    image = bytearray(made.image)
    for offset, data in patches:
        image[offset : offset + len(data)] = data
    return Damage(kind, bytes(image), [(at, at + len(data)) for at, data in patches])


def places(made: Original, step: int = 1) -> Iterator[int]:
    """Each offset that means something; of contents of files one of 397."""
    done = 0
    for start, end in used_bytes(made):
        yield from range(max(start, done), end, step if end - start < METADATA else 397 * step)
        done = max(done, end)


def flips(made: Original, step: int, rand: random.Random) -> Iterator[Damage]:
    for at in places(made, step):
        yield patched(made, "a bit flipped", Patch(at, bytes([made.image[at] ^ 1 << rand.randrange(8)])))


def many_flips(made: Original, step: int, rand: random.Random) -> Iterator[Damage]:
    where = list(places(made))
    for _ in range(5_000 // step):
        chosen = rand.sample(where, rand.randint(2, 40))
        changes = [Patch(at, bytes([made.image[at] ^ rand.randrange(1, 256)])) for at in chosen]
        yield patched(made, "many bytes changed", *changes)


def runs(value: int) -> Callable[[Original, int, random.Random], Iterator[Damage]]:
    def make(made: Original, step: int, rand: random.Random) -> Iterator[Damage]:
        for at in places(made, 15 * step):
            length = rand.choice((8, RECORD_SIZE, 512, 4096, 30_000))
            yield patched(made, f"a run of {value:#04x}", Patch(at, bytes([value]) * length))

    return make


def cuts(made: Original, step: int, rand: random.Random) -> Iterator[Damage]:
    for at in places(made, step):
        yield Damage("cut", made.image[:at], [(at, TO_THE_END)])


def block(made: Original, size: int, number: int) -> bytes:
    return made.image[number * size : (number + 1) * size]


def swaps(made: Original, step: int, rand: random.Random) -> Iterator[Damage]:
    for size in (512, 4096):
        numbers = sorted({at // size for at in places(made, 64)})
        for one in numbers[::step]:
            other = rand.choice(numbers)
            patches = (
                Patch(one * size, block(made, size, other)),
                Patch(other * size, block(made, size, one)),
            )
            yield patched(made, "blocks swapped", *patches)


def old_blocks(made: Original, step: int, rand: random.Random) -> Iterator[Damage]:
    """As the block was after one of the commits before: what came later is zeros, and slots are older."""
    ends = [record.end for _, record in sorted(made.records.items())]
    for size in (512, 4096):
        for number in sorted({at // size for at in places(made, 64)})[::step]:
            end = rand.choice(ends)
            data = bytearray(block(made, size, number))
            keep = min(max(end - number * size, 0), size)
            data[keep:] = bytes(size - keep)
            yield patched(made, "an old block put back", Patch(number * size, bytes(data)))
    for image in made.earlier[::step]:
        for slot in (0, 4096):
            yield patched(made, "an old block put back", Patch(slot, image[slot : slot + 512]))


def other_tails(made: Original, step: int, rand: random.Random, other: Original) -> Iterator[Damage]:
    size = len(made.image)
    for at in places(made, 15 * step):
        if at > 8192 + RECORD_SIZE:
            image = made.image[:at] + other.image[at:size]
            yield Damage("another store's tail", image, [(at, TO_THE_END)])


def other_records(made: Original, step: int, rand: random.Random, other: Original) -> Iterator[Damage]:
    """Whole records of another store, with their bytes, where they were there or elsewhere."""
    records = list(other.records.values())
    ours = list(made.records.values())
    for turn in range(0, 4000, step):
        record = rand.choice(records)
        data = other.image[record.offset : record.end][: rand.choice((RECORD_SIZE, 1 << 30))]
        at = rand.choice((record.offset, rand.choice(ours).offset, rand.choice(ours).end - 8))
        if at + len(data) <= len(made.image) and turn >= 0:
            yield patched(made, "another store's records", Patch(at, data))


def lost_slots(made: Original, step: int, rand: random.Random) -> Iterator[Damage]:
    for at in places(made, 31 * step):
        changes = [Patch(at, bytes([made.image[at] ^ 0xFF])), Patch(0, bytes(512)), Patch(4096, bytes(512))]
        yield patched(made, "both slots lost, and a byte", *changes)


def all_damage(made: Original, other: Original, *, step: int, seed: int) -> Iterator[Damage]:
    rand = random.Random(seed)
    for kind in (flips, many_flips, runs(0), runs(0xFF), cuts, swaps, old_blocks, lost_slots):
        yield from kind(made, step, rand)
    for spliced in (other_tails, other_records):
        yield from spliced(made, step, rand, other)


# -- the run -------------------------------------------------------------------------------------


class Tally:
    """Counts of one run, by kind of damage."""

    def __init__(self, made: Original, folder: Path, *, salvage_every: int, sample: int = 1) -> None:
        self.sample = sample
        self.made = made
        self.folder = folder
        self.salvage_every = salvage_every
        self.counts: dict[str, Counter[str]] = {}
        self.wrong = 0
        self.tried = 0

    def one(self, damage: Damage) -> str:
        """Look at one; what is wrong with it, if anything is."""
        counts = self.counts.setdefault(damage.kind, Counter())
        counts["tried"] += 1
        self.tried += 1
        try:
            verdict = judge(
                self.made, damage.image, damage.changed, sample=self.sample, turn=self.tried // self.sample
            )
            refused = trio.run(mounted, self.made, damage.image, self.folder / "original 1", verdict)
            if self.salvage_every and self.tried % self.salvage_every == 0:
                counts["salvaged"] += 1
                salvaged(self.made, damage.image, self.folder, verdict)
        except Exception:
            counts["crashes"] += 1
            self.wrong += 1
            return traceback.format_exc(limit=-3)
        counts["mounted for writing"] += not refused
        counts["found by check"] += verdict.found
        counts["harmless"] += not verdict.found
        counts["torn end"] += refused == "torn"
        return self._wrong(counts, verdict)

    def _wrong(self, counts: Counter[str], verdict: Verdict) -> str:
        counts["wrong bytes served"] += bool(verdict.wrong_bytes)
        counts["undamaged commits unreadable"] += bool(verdict.unreadable)
        counts["not found or not named"] += bool(verdict.unfound)
        told = [*verdict.wrong_bytes, *verdict.unreadable, *verdict.unfound]
        self.wrong += bool(told)
        return "\n".join(told[:5])

    def lines(self) -> Iterator[str]:
        for kind, counts in self.counts.items():
            parts = [
                f"{counts[what]} {what}"
                for what in ("tried", "found by check", "mounted for writing", "salvaged")
            ]
            parts += [f"{counts[what]} {what}" for what in ("harmless", "torn end") if counts[what]]
            parts += [
                f"{counts[what]} {what}"
                for what in (
                    "wrong bytes served",
                    "crashes",
                    "undamaged commits unreadable",
                    "not found or not named",
                )
            ]
            yield f"{kind}: {', '.join(parts)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--step", type=int, default=1, metavar="N", help="take one of N places")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--salvage", type=int, default=10, metavar="N", help="each Nth is salvaged; 0: none")
    parser.add_argument("--sample", type=int, default=4, metavar="N", help="read one of N untouched commits")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made, other = original(folder, 1), original(folder, 2)
        tally = Tally(made, folder, salvage_every=options.salvage, sample=options.sample)
        kind = ""
        for damage in all_damage(made, other, step=options.step, seed=options.seed):
            if damage.kind != kind and kind:
                print(
                    f"{kind}: {tally.counts[kind]['tried']}, {time.monotonic() - started:.0f} s", flush=True
                )
            kind = damage.kind
            if wrong := tally.one(damage):
                print(f"wrong, {kind} {damage.changed[:3]}:\n{wrong}", file=sys.stderr, flush=True)
    for line in tally.lines():
        print(line)
    print(f"{tally.tried} tried, {tally.wrong} wrong, {time.monotonic() - started:.0f} s")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
