"""Group commit: 64 and 8 committers at once against one, for ready bytes and through a mount.

Closes that arrive while a sync is under way are written as one range with one sync; how much
that buys is commits a second with many committers over commits a second with one.
"""

import time

import trio

from benchmarks.bench import SAVE, Bench, run_saves, side
from benchmarks.report import Report
from benchmarks.stats import Goal, Ratio, ratio
from benchmarks.stores import NO_ROOT, GroupCommitter, Store, new_store

TITLE = "commits a second of 64 and of 8 committers at once against one"
CROWDS = (1, 8, 64)
GOALS = {"ready bytes": 8.0, "mount": 2.5}


def measure(bench: Bench) -> Report:
    rounds = bench.rounds_of(9)
    found: dict[str, list[list[float]]] = {}
    with new_store(bench.place("store.db")) as store:
        commits = bench.pick(1920, 320)
        for turn in range(rounds + 1):
            for crowd in CROWDS if turn % 2 else reversed(CROWDS):
                rate = trio.run(committers, store, crowd, commits)
                if turn:
                    found.setdefault(f"ready bytes, {crowd}", []).append([rate])
    with bench.mount() as mounted:
        saves = bench.pick(1280, 320)
        for turn in range(rounds + 1):
            for crowd in CROWDS if turn % 2 else reversed(CROWDS):
                folder = mounted.folder / f"r{turn}t{crowd}"
                folder.mkdir()
                (taken,) = run_saves(bench, [("close", folder)], n=saves, t=crowd)
                if turn:
                    found.setdefault(f"mount, {crowd}", []).append([saves / taken.wall * 1e6])
    sides = {name: side(name, each, "commits/s") for name, each in found.items()}
    ratios: list[Ratio] = []
    for what, limit in GOALS.items():
        for crowd in CROWDS[:0:-1]:
            goal = Goal(limit, at_most=False) if crowd == 64 else None
            one, many = sides[f"{what}, 1"], sides[f"{what}, {crowd}"]
            ratios.append(ratio(many, one, goal=goal, name=f"{what}, {crowd} committers / 1"))
    ordered = [f"{what}, {crowd}" for what in GOALS for crowd in CROWDS]
    return Report([sides[name] for name in ordered], ratios)


async def committers(store: Store, crowd: int, commits: int) -> float:
    """Commits a second of `crowd` tasks that make `commits` commits between them."""
    committer = GroupCommitter(store)
    data = bytes(range(256)) * (SAVE // 256)

    async def commit() -> None:
        for _ in range(commits // crowd):
            txn = store.begin()
            txn.add(data)
            await committer.acknowledge(txn.finish(root=NO_ROOT, time_ns=time.time_ns()))

    async with trio.open_nursery() as background:
        await background.start(committer.run)
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(crowd):
                nursery.start_soon(commit)
        took = time.perf_counter() - start
        await committer.drain()
        background.cancel_scope.cancel()
    return commits // crowd * crowd / took
