"""Saves of 2 KiB through a mount against the same saves, each with an fsync, on the disk below.

One C client makes both, 20 on one side and 20 on the other in turn.  A save on the mount is
open, write, close; on the disk below open, write, fsync, close.  New files are also made on a
third side, the least that a mount in Python can do (floor.py).
"""

from benchmarks.bench import Bench, Saves, run_saves, side
from benchmarks.report import Report
from benchmarks.stats import Goal, Ratio, Side, percentile, ratio

TITLE = "a save of 2 KiB through the mount (close) against one on the disk below (fsync)"
HOWS = {
    "create": "create + write",
    "trunc": "open with O_TRUNC + write",
    "inplace": "open + write over",
}
CREATE_GOAL = Goal(1.5)


def measure(bench: Bench) -> Report:
    saves = bench.pick(200, 100)
    rounds = bench.rounds_of(21, quick=5)
    below = bench.folder_below("below")
    sides: list[Side] = []
    ratios: list[Ratio] = []
    parts: dict[str, float] = {}
    with bench.mount() as mounted, bench.floor() as floor:
        for how, words in HOWS.items():
            ends = [("close", mounted.folder), ("fsync", below)]
            names = ["mount", "below"]
            if how == "create":
                ends.insert(1, ("close", floor.folder))
                names.insert(1, "floor")
            found: list[list[Saves]] = []
            for turn in range(rounds + 1):
                # Creating goes on behind the files of earlier rounds; the others save those again.
                first = turn * saves if how == "create" else 0
                found.append(run_saves(bench, ends, n=saves, o=how, f=first))
            del found[0]
            by_name = {
                name: side(f"{words}, {name}", [turn[place].total for turn in found])
                for place, name in enumerate(names)
            }
            sides += by_name.values()
            mount, disk = by_name["mount"], by_name["below"]
            for at in (0.5, 0.9, 0.99):
                goal = CREATE_GOAL if how == "create" and at == 0.5 else None
                ratios.append(ratio(mount, disk, at, goal, f"{words}, mount / below, p{at * 100:g}"))
            if how == "create":
                ratios.append(ratio(mount, by_name["floor"], name=f"{words}, mount / floor, p50"))
                for place, name in enumerate(names):
                    parts |= medians(f"{words}, {name}", [turn[place] for turn in found])
    return Report(sides, ratios, parts)


def medians(name: str, found: list[Saves]) -> dict[str, float]:
    """Where the time of the saves of one side went, by system call."""
    columns = {
        "open": [us for saves in found for us in saves.opened],
        "write": [us for saves in found for us in saves.written],
        "close or fsync": [us for saves in found for us in saves.ended],
    }
    return {f"{name}: {what}, us": round(percentile(each, 0.5), 1) for what, each in columns.items()}
