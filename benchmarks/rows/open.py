"""Opening a store of 100,000 commits against one of 10, for reading and for writing.

Cold within the process (nothing kept of an earlier open), the page cache warm.  The reads the
store asks of the file are counted too: they must not depend on the number of commits.
"""

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.report import Report
from benchmarks.stats import Goal, alternate, ratio
from benchmarks.stores import Store, count_reads, fill_store

TITLE = "opening a store of 100,000 commits against one of 10"


def measure(bench: Bench) -> Report:
    many = bench.pick(100_000, 5_000)
    opens = bench.pick(20, 10)
    few, full = bench.place("few.db"), bench.place("many.db")
    fill_store(few, 10)
    fill_store(full, many)
    facts = {}
    for name, path in (("10", few), (f"{many:,}", full)):
        for how, writable in (("reading", False), ("writing", True)):
            reads, read = count_reads(path, writable)
            facts[f"{name} commits, for {how}: reads"] = reads
            facts[f"{name} commits, for {how}: bytes read"] = read

    def opener(path: Path, writable: bool) -> Callable[[], list[float]]:
        def run() -> list[float]:
            took = []
            for _ in range(opens):
                start = time.perf_counter_ns()
                store = Store.open(path, writable=writable)
                took.append((time.perf_counter_ns() - start) / 1000)
                store.close()
            return took

        return run

    sides = alternate(
        {
            "10, for reading": opener(few, False),
            f"{many:,}, for reading": opener(full, False),
            "10, for writing": opener(few, True),
            f"{many:,}, for writing": opener(full, True),
        },
        bench.rounds_of(11),
        "us",
    )
    read_few, read_many, write_few, write_many = sides.values()
    ratios = [
        ratio(read_many, read_few, goal=Goal(2)),
        ratio(write_many, write_few, goal=Goal(2)),
    ]
    return Report(list(sides.values()), ratios, facts)
