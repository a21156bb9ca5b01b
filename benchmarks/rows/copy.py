"""``cp -a`` of trees into a mount: the time of a file, and the daemon's memory.

The memory must not grow with the bytes copied: as many files of 64 KiB as of 1 KiB, and one
file of 512 MiB, each into a fresh mount, are compared by the peak of the daemon's own memory.
The time is compared with ``cp -a`` to the disk below followed by an fsync of every file.
"""

import os
import random
import subprocess
import time
from pathlib import Path

from benchmarks.bench import Bench, side
from benchmarks.mounted import Memory
from benchmarks.report import Fact, Report
from benchmarks.stats import Goal, Ratio, Side, ratio

TITLE = "cp -a into the mount: time a file, and the daemon's memory against the bytes copied"
FOLDERS = 100


def measure(bench: Bench) -> Report:
    files = bench.pick(10_000, 1_000)
    rounds = bench.rounds_of(2, quick=1)
    small = make_tree(bench.new_folder("small"), files, 1 << 10)
    large = make_tree(bench.new_folder("large"), files, 64 << 10)
    single = bench.new_folder("single")
    write_bytes(single / "one", bench.pick(512, 64) << 20)

    sides: list[Side] = []
    ratios: list[Ratio] = []
    facts: dict[str, Fact] = {}
    peaks: dict[str, float] = {}
    for name, tree, count in (("1 KiB", small, files), ("64 KiB", large, files), ("one large", single, 1)):
        ours: list[list[float]] = []
        disks: list[list[float]] = []
        for turn in range(rounds):
            took: dict[str, float] = {}
            for how in (copy_below, copy_mounted) if turn % 2 else (copy_mounted, copy_below):
                took.update(how(bench, tree))
            ours.append([took["mount"] * 1e6 / count])
            disks.append([took["below"] * 1e6 / count])
            peaks[name] = max(peaks.get(name, 0.0), took["peak"])
            facts[f"{name}: daemon's memory when mounted, MiB"] = round(took["first"], 1)
        facts[f"{name}: daemon's peak memory, MiB"] = round(peaks[name], 1)
        sides += [side(f"{name}, mount", ours, "us a file"), side(f"{name}, below", disks, "us a file")]
        ratios.append(ratio(sides[-2], sides[-1], name=f"time of {name} files, mount / below"))
    for name in ("64 KiB", "one large"):
        grown = peaks[name] / peaks["1 KiB"]
        ratios.append(Ratio(f"peak memory, {name} / 1 KiB files", grown, grown, grown, Goal(1.25)))
    return Report(sides, ratios, facts)


def make_tree(top: Path, files: int, size: int) -> Path:
    """`files` files of `size` bytes that do not compress, in `FOLDERS` folders under `top`."""
    noise = random.Random(size)
    for i in range(FOLDERS):
        (top / f"d{i:02}").mkdir()
    for i in range(files):
        (top / f"d{i % FOLDERS:02}" / f"f{i:05}").write_bytes(noise.randbytes(size))
    return top


def write_bytes(path: Path, size: int) -> None:
    """One file of `size` bytes, a multiple of 1 MiB, that do not compress."""
    noise = random.Random(size)
    with path.open("wb") as file:
        for _ in range(size >> 20):
            file.write(noise.randbytes(1 << 20))


def sync_each(top: Path) -> None:
    for folder, _, names in os.walk(top):
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def copy_below(bench: Bench, tree: Path) -> dict[str, float]:
    target = bench.place("below")
    start = time.perf_counter()
    subprocess.run(["cp", "-a", tree, target], check=True)
    sync_each(target)
    return {"below": time.perf_counter() - start}


def copy_mounted(bench: Bench, tree: Path) -> dict[str, float]:
    with bench.mount() as mounted, Memory(mounted.pid) as memory:
        start = time.perf_counter()
        subprocess.run(["cp", "-a", tree, mounted.folder / "copy"], check=True)
        took = time.perf_counter() - start
        # What is staged settles after a second; its memory counts too.
        time.sleep(1.5)
    return {"mount": took, "peak": memory.peak, "first": memory.first}
