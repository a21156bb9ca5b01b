"""A store commit of 2 KiB of ready bytes, no tree, against the same bytes in a bare C loop.

The loop writes record and bytes (2,176 bytes) over zeros laid before and syncs them, once as
pwritev and fdatasync, once as pwritev2 with RWF_DSYNC; the store does begin, add, finish, flush.
What is left between them is the store's own work: the record, its checksums, Python.
"""

import time

from benchmarks.bench import SAVE, Bench
from benchmarks.report import Report
from benchmarks.stats import Goal, alternate, ratio
from benchmarks.stores import NO_ROOT, new_store

TITLE = "store commit of 2 KiB of ready bytes, no tree, against a bare C loop of the same bytes"


def measure(bench: Bench) -> Report:
    commits = bench.pick(300, 100)
    data = bytes(range(256)) * (SAVE // 256)
    log = bench.place("log")
    with new_store(bench.place("store.db")) as store:

        def commit() -> list[float]:
            took = []
            for _ in range(commits):
                start = time.perf_counter_ns()
                txn = store.begin()
                txn.add(data)
                txn.finish(root=NO_ROOT, time_ns=time.time_ns())
                store.flush()
                took.append((time.perf_counter_ns() - start) / 1000)
            return took

        sides = alternate(
            {
                "store": commit,
                "C fdatasync": lambda: bench.bare("fdatasync", log, commits),
                "C RWF_DSYNC": lambda: bench.bare("dsync", log, commits),
            },
            bench.rounds_of(21, quick=5),
            "us",
        )
    ratios = [
        ratio(sides["store"], sides["C fdatasync"], goal=Goal(1.3)),
        ratio(sides["store"], sides["C RWF_DSYNC"]),
        ratio(sides["store"], sides["C fdatasync"], 0.99),
    ]
    return Report(list(sides.values()), ratios)
