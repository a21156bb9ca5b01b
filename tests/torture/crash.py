"""Try as many crash states as wanted: ``python -m tests.torture.crash --states 1000000 --seed 1``.

Run after run with a load of its own, each enumerated more closely than the suite does, until the number
is reached.  Ends with exit code 1 at the first state that is wrong, and says which.  The same seed gives
the same states, but for the kinds in which tasks work at once.
"""

import argparse
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import trio

from commitfs.store.make import make_file, new_image
from commitfs.store.puretre2 import EarlierWriter
from commitfs.store.store import Store
from tests.support.crash_check import Checker, CrashFailure
from tests.support.crash_load import Load, drawn, short_commits, short_tail
from tests.support.crash_states import Enumerator

KINDS = ("mixed", "flat", "tasks", "staged", "aligned", "earlier", "surplus")


def make(kind: str, path: Path, seed: int) -> Load:
    """A recorded run of one kind."""
    earlier = seed % 3 + 1 if kind == "earlier" else 0
    if earlier:
        make_file(str(path), new_image(8, earlier=True))
        writer = EarlierWriter(str(path))
        for number in range(earlier):
            writer.commit([b"commit of the earlier format %d" % number] * 40, time_ns=number)
        writer.close()
    else:
        Store.create(str(path), align=512 if kind == "aligned" else 8)
    load = Load.on(path, seed=seed, trees=kind != "flat", earlier=earlier)
    if kind == "tasks":
        trio.run(load.concurrently, 6, 10)
    elif kind == "staged":
        trio.run(load.staged, 6)
    elif kind == "surplus":
        with short_commits():
            for number in range(12):
                load.flush(load.place((9_000,) * (number % 3 * 2 + 2)), load.place((300,)))
    else:
        load.commits(60)
    load.store.close()
    return load


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--states", type=int, default=100_000, metavar="N", help="stop after N crash states")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--per-prefix", type=int, default=400, metavar="N", help="choices at one operation")
    parser.add_argument("--kind", choices=KINDS, help="only loads of this kind")
    parser.add_argument("--short-tail", action="store_true", help="tail in steps of 64 KiB: 3 times as fast")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where to put a file found wrong")
    args = parser.parse_args()
    tail = short_tail() if args.short_tail else nullcontext()
    with tail:
        return torture(args)


def torture(args: argparse.Namespace) -> int:
    done, repeats, nested, commits, run = 0, 0, 0, 0, 0
    started = time.monotonic()
    while done < args.states:
        kind = args.kind or KINDS[run % len(KINDS)]
        seed = args.seed * 1_000_003 + run
        with tempfile.TemporaryDirectory() as folder, drawn(seed):
            load = make(kind, Path(folder) / "store", seed)
            checker = Checker(load.path, load.made, load.earlier, seed=seed, nest_every=400)
            try:
                states = Enumerator(load.trace, seed=seed, per_prefix=args.per_prefix).states()
                checker.run(states, limit=args.states - done)
            except CrashFailure as failure:
                print(f"wrong: {kind} load of seed {seed}: {failure}", file=sys.stderr)
                if args.keep and failure.image is not None:
                    args.keep.write_bytes(failure.image)
                return 1
        done += checker.states
        repeats += checker.repeats
        nested += checker.nested
        commits += len(load.made)
        run += 1
        print(
            f"{done} states ({nested} in a recovery, {repeats} more repeated) of {commits} commits in "
            f"{run} runs, {time.monotonic() - started:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
