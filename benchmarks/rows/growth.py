"""How much the store grows per save of 2 KiB in a tree of 100,000 files.

The tree is made through a mount, a commit a file; then saves go to random files of random
folders, one way at a time, and the published end says what each way cost.
"""

import os
import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from benchmarks.bench import SAVE, Bench, run_saves
from benchmarks.report import Report
from benchmarks.stats import Goal, Ratio, middle
from benchmarks.stores import published_end

TITLE = "store growth per save of 2 KiB in a tree of 100,000 files"
PER_FOLDER = 500
SETTLE = 1.5
"""Seconds after which whatever was staged is committed."""


def measure(bench: Bench) -> Report:
    folders = bench.pick(200, 10)
    saves = bench.pick(500, 100)
    store = bench.place("store.db")
    noise = random.Random(1)
    with bench.mount(store) as mounted:
        start = time.perf_counter()
        for i in range(folders):
            folder = mounted.folder / f"d{i:03}"
            folder.mkdir()
            run_saves(bench, [("close", folder)], n=PER_FOLDER, t=16)
        filled = time.perf_counter() - start

        def some() -> Path:
            return mounted.folder / f"d{noise.randrange(folders):03}"

        def overwrite(i: int) -> None:
            write(some() / f"f{noise.randrange(PER_FOLDER):08}", noise.randbytes(SAVE))

        def create(i: int) -> None:
            write(some() / f"new{i}", noise.randbytes(SAVE))

        def replace(i: int) -> None:
            name = some() / f"f{noise.randrange(PER_FOLDER):08}"
            temporary = name.with_suffix(".tmp")
            write(temporary, noise.randbytes(SAVE))
            os.rename(temporary, name)

        ratios = [
            grown("overwrite", store, overwrite, saves, Goal(3)),
            grown("create", store, create, saves),
            grown("write another, rename over", store, replace, saves),
        ]
    facts = {
        "files": folders * PER_FOLDER,
        "filling it, files/s": round(folders * PER_FOLDER / filled),
        "store, MiB": round(store.stat().st_size / 2**20, 1),
    }
    return Report((), ratios, facts)


def grown(what: str, store: Path, save: Callable[[int], None], saves: int, goal: Goal | None = None) -> Ratio:
    """Bytes the published end moved per save, over the bytes saved; of ten parts."""
    time.sleep(SETTLE)
    ends = [published_end(store)]
    parts = 10
    for part in range(parts):
        for i in range(saves // parts):
            save(part * (saves // parts) + i)
        time.sleep(SETTLE)
        ends.append(published_end(store))
    each = [(after - before) / (saves // parts) / SAVE for before, after in pairwise(ends)]
    return Ratio(f"{what}: bytes in the store per byte saved", *middle(each), goal)


def write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    os.write(fd, data)
    os.close(fd)
