"""Try as many crash states as wanted: ``python -m tests.torture.crash --states 1000000 --seed 1``.

Run after run with a load of its own, each enumerated more closely than the suite does, until the number
is reached.  What is wrong is told on stderr, and the last lines are a table of the counts; the exit code is
1 if anything was wrong.  The same seed gives the same states, but for the kinds in which tasks work at
once.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import trio

from commitfs.store.store import Store
from tests.support.crash_check import Checker, CrashFailure, Fault
from tests.support.crash_load import Load, drawn, make_earlier, short_tail
from tests.support.crash_reader import Watch
from tests.support.crash_states import Enumerator

ENOUGH_WRONG = 20
"""So many wrong states end the run."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of load: what is done to a store made with `align`, on a medium whose interrupted writes
    destroy units of `destroys` bytes (0: nothing)."""

    work: Callable[[Load], None]
    align: int = 8
    destroys: int = 0
    trees: bool = True
    earlier: bool = False
    """The store begins as one of the earlier format."""
    real: bool = False
    """On a file on disk, with the native thread."""


def mixed(load: Load) -> None:
    load.commits(60)


def tasks(load: Load) -> None:
    trio.run(load.concurrently, 6, 10)


def tasks_beside(load: Load) -> None:
    trio.run(load.concurrently, 6, 10, False)
    trio.run(load.staged, 2, False)


def staged(load: Load) -> None:
    trio.run(load.staged, 6)


def surplus(load: Load) -> None:
    load.surplus(12)


def everything(load: Load) -> None:
    load.everything(4)


KINDS = {
    "mixed": Kind(mixed),
    "flat": Kind(mixed, trees=False),
    "tasks": Kind(tasks),
    "native": Kind(tasks_beside, real=True),
    "staged": Kind(staged),
    "surplus": Kind(surplus),
    "earlier": Kind(mixed, earlier=True),
    "long": Kind(everything),
    "long-earlier": Kind(everything, earlier=True),
    "long-512": Kind(everything, align=512),
    "long-4096": Kind(everything, align=4096),
    "aligned-512": Kind(mixed, align=512, destroys=512),
    "aligned-4096": Kind(mixed, align=4096, destroys=4096),
    "destroyed-512": Kind(everything, align=512, destroys=512),
    "destroyed-4096": Kind(everything, align=4096, destroys=4096),
}


def make(kind: Kind, path: Path, seed: int) -> Load:
    """A recorded run of one kind."""
    earlier = seed % 3 + 1 if kind.earlier else 0
    if earlier:
        make_earlier(path, earlier)
    else:
        Store.create(str(path), align=kind.align)
    if kind.real:
        load = Load.on_disk(path, seed=seed, trees=kind.trees)
    else:
        load = Load.on(path, seed=seed, trees=kind.trees, earlier=earlier)
    kind.work(load)
    load.store.close()
    return load


@dataclass
class Tally:
    """What was tried of one kind."""

    runs: int = 0
    commits: int = 0
    states: int = 0
    nested: int = 0
    repeats: int = 0
    followed: int = 0
    views: int = 0
    wrong: Counter[Fault] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        for name in ("runs", "commits", "states", "nested", "repeats", "followed", "views"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wrong += other.wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--states", type=int, default=100_000, metavar="N", help="stop after N crash states")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--per-prefix", type=int, default=96, metavar="N", help="choices at one operation")
    parser.add_argument("--kind", choices=KINDS, help="only loads of this kind")
    parser.add_argument("--short-tail", action="store_true", help="tail in steps of 64 KiB: 3 times as fast")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where to put a file found wrong")
    args = parser.parse_args()
    tail = short_tail() if args.short_tail else nullcontext()
    with tail:
        return torture(args)


def torture(args: argparse.Namespace) -> int:
    tallies: dict[str, Tally] = {}
    total = Tally()
    started = time.monotonic()
    names = [args.kind] if args.kind else list(KINDS)
    while total.states < args.states and total.wrong.total() < ENOUGH_WRONG:
        name = names[total.runs % len(names)]
        seed = args.seed * 1_000_003 + total.runs
        tally = one_run(name, seed, args.states - total.states, args)
        total.add(tally)
        tallies.setdefault(name, Tally()).add(tally)
        if sys.stderr.isatty():
            print(f"\r{total.states} states, {total.runs} runs, {name}\033[K", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    report(tallies, total, time.monotonic() - started)
    return 1 if total.wrong else 0


def one_run(name: str, seed: int, limit: int, args: argparse.Namespace) -> Tally:
    kind = KINDS[name]
    tally = Tally(runs=1)

    def wrong(fault: Fault, what: str) -> None:
        tally.wrong[fault] += 1
        print(f"{fault.value}: {name} load of seed {seed}: {what}", file=sys.stderr)

    def wrong_state(failure: CrashFailure) -> None:
        wrong(failure.fault, str(failure))
        if args.keep and failure.image is not None:
            args.keep.write_bytes(failure.image)

    with tempfile.TemporaryDirectory() as folder, drawn(seed):
        load = make(kind, Path(folder) / "store", seed)
        watch = Watch(load.path, load.made, seed=seed)
        try:
            watch.run(load.trace)
        except AssertionError as exc:
            wrong(Fault.WRONG, str(exc))
        checker = Checker.of(
            load, seed=seed, thorough=64, nest_every=400, destroys=kind.destroys, tolerate=wrong_state
        )
        enumerator = Enumerator(load.trace, seed=seed, per_prefix=args.per_prefix, destroys=kind.destroys)
        checker.run(enumerator.states(), limit=limit)
    tally.commits = len(load.made)
    tally.states, tally.nested, tally.repeats = checker.states, checker.nested, checker.repeats
    tally.followed, tally.views = checker.followed, watch.views
    return tally


def report(tallies: dict[str, Tally], total: Tally, seconds: float) -> None:
    """A line for each kind and one for all: what was tried, and of that what was wrong."""
    print(f"{'kind':<15}{'runs':>5}{'commits':>9}{'states':>9}" + "".join(f"{f.value:>17}" for f in Fault))
    for name, tally in [*tallies.items(), ("all", total)]:
        counts = "".join(f"{tally.wrong[fault]:>17}" for fault in Fault)
        print(f"{name:<15}{tally.runs:>5}{tally.commits:>9}{tally.states:>9}{counts}")
    print(
        f"{total.states} distinct crash states ({total.nested} of them during a recovery, {total.repeats} "
        f"more repeated) of {total.commits} commits; a reader from before the crash in {total.followed}, "
        f"readers beside the writer in {total.views} views; {seconds:.0f} s"
    )
    print(", ".join(f"{total.wrong[fault]} {fault.value}" for fault in Fault))


if __name__ == "__main__":
    sys.exit(main())
