"""Saves of 2 KiB through a mount against the same saves, each with an fsync, on the disk below.

One C client makes both, 20 on one side and 20 on the other in turn.  A save on the mount is
open, write, close; on the disk below open, write, fsync, close.
"""

from benchmarks.bench import Bench, Saves, run_saves, side
from benchmarks.report import Report
from benchmarks.stats import Goal, Ratio, Side, ratio

TITLE = "a save of 2 KiB through the mount (close) against one on the disk below (fsync)"
HOWS = {
    "create": "create + write",
    "trunc": "open with O_TRUNC + write",
    "inplace": "open + write over",
}


def measure(bench: Bench) -> Report:
    saves = bench.pick(1000, 200)
    rounds = bench.rounds_of(5)
    below = bench.new_folder("below")
    sides: list[Side] = []
    ratios: list[Ratio] = []
    facts = {}
    with bench.mount() as mounted:
        ends = [("close", mounted.folder), ("fsync", below)]
        for how, words in HOWS.items():
            found: list[tuple[Saves, Saves]] = []
            for turn in range(rounds + 1):
                # Creating goes on behind the files of earlier rounds; the others save those again.
                first = turn * saves if how == "create" else 0
                mount, disk = run_saves(bench, ends, n=saves, o=how, f=first)
                if turn:
                    found.append((mount, disk))
            ours = side(f"{words}, mount", [mount.total for mount, _ in found])
            disks = side(f"{words}, below", [disk.total for _, disk in found])
            sides += [ours, disks]
            goal = Goal(1.5) if how == "create" else None
            ratios += [
                ratio(ours, disks, goal=goal, name=f"{words}, p50"),
                ratio(ours, disks, 0.9, name=f"{words}, p90"),
                ratio(ours, disks, 0.99, name=f"{words}, p99"),
            ]
            if how == "create":
                parts = {"open": "opened", "write": "written", "close": "ended"}
                for part, attribute in parts.items():
                    each = [getattr(mount, attribute) for mount, _ in found]
                    facts[f"create on the mount, {part}, us"] = round(side(part, each).at(0.5), 1)
    return Report(sides, ratios, facts)
