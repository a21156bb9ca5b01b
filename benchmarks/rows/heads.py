"""Heads in slots, the format before records, against heads as records, on this device.

A commit of the earlier format is its bytes over the tail's zeros and its head in the older slot: two
ranges under one sync.  A record lies just before its bytes: one range.  What that is worth depends on
whether the medium charges by the range; 400 commits a round, three rounds, order alternated.
"""

import os
import time

from benchmarks.bench import SAVE, Bench
from benchmarks.report import Report
from benchmarks.stats import alternate, ratio
from benchmarks.stores import NO_ROOT, EarlierWriter, new_earlier_store, new_store

TITLE = "heads in slots (the earlier format) against heads as records"


def measure(bench: Bench) -> Report:
    commits = bench.pick(400, 100)
    data = os.urandom(SAVE)
    earlier_path = bench.place("earlier.db")
    new_earlier_store(earlier_path)
    earlier = EarlierWriter(str(earlier_path))
    try:
        with new_store(bench.place("store.db")) as store:

            def in_slots() -> list[float]:
                took = []
                for _ in range(commits):
                    start = time.perf_counter_ns()
                    earlier.commit([data], time_ns=time.time_ns())
                    took.append((time.perf_counter_ns() - start) / 1000)
                return took

            def as_records() -> list[float]:
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
                {"heads in slots": in_slots, "heads as records": as_records}, bench.rounds_of(3), "us"
            )
    finally:
        earlier.close()
    slots, records = sides.values()
    rates = {
        f"{side.name}, commits/s": round(1e6 * len(side.samples) / sum(side.samples))
        for side in (slots, records)
    }
    return Report([slots, records], [ratio(slots, records), ratio(slots, records, 0.99)], rates)
