"""A mount of a store of 100,000 commits: listing them, and reading a file in an old one.

Each figure is the first of its kind after a new mount.
"""

import os
import subprocess
import time
from pathlib import Path

from benchmarks.bench import Bench, side
from benchmarks.mounted import Memory
from benchmarks.report import Fact, Report
from benchmarks.stats import Goal, Ratio, Side, middle, ratio
from benchmarks.stores import repeat_head

TITLE = "a mount of 100,000 commits: listing them, a file in an old one"


def measure(bench: Bench) -> Report:
    commits = bench.pick(100_000, 5_000)
    rounds = bench.rounds_of(5, quick=2)
    few, many = bench.place("few.db"), bench.place("many.db")
    for path, count in ((few, 10), (many, commits)):
        with bench.mount(path) as mounted:
            (mounted.folder / "file").write_bytes(b"the first contents\n" * 100)
        repeat_head(path, count)
    seconds: dict[str, list[list[float]]] = {}
    facts: dict[str, Fact] = {}
    for _ in range(rounds):
        for name, path in (("10", few), (f"{commits:,}", many)):
            start = time.perf_counter()
            with bench.mount(path) as mounted:
                found = {f"mount, {name} commits": time.perf_counter() - start}
                with Memory(mounted.pid) as memory:
                    old, found[f"list, {name} commits"] = listing(mounted.folder)
                    found[f"old file, {name} commits"] = first_read(
                        mounted.folder / ".commits" / old / "file"
                    )
                facts[f"daemon's peak memory, {name} commits, MiB"] = round(memory.peak, 1)
            for what, took in found.items():
                seconds.setdefault(what, []).append([took * 1000])
    sides = {what: side(what, each, "ms") for what, each in seconds.items()}
    ratios = [
        limit(sides[f"list, {commits:,} commits"], 2000),
        limit(sides[f"old file, {commits:,} commits"], 50),
        ratio(sides[f"mount, {commits:,} commits"], sides["mount, 10 commits"]),
    ]
    return Report(list(sides.values()), ratios, facts)


def limit(of: Side, milliseconds: float) -> Ratio:
    return Ratio(of.name, *middle(of.samples), Goal(milliseconds), "ms")


def listing(folder: Path) -> tuple[str, float]:
    """The name of the middle commit, and the seconds `ls` took to list them all."""
    start = time.perf_counter()
    out = subprocess.run(["ls", "-U", folder / ".commits"], stdout=subprocess.PIPE, check=True, text=True)
    took = time.perf_counter() - start
    names = sorted(name for name in out.stdout.split() if name.isdigit())
    return names[len(names) // 2], took


def first_read(path: Path) -> float:
    start = time.perf_counter()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not os.read(fd, 1 << 16):
        raise OSError(f"{path.name} is empty")
    os.close(fd)
    return time.perf_counter() - start
