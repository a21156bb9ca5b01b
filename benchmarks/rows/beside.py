"""Small saves beside a large copy, and alone, on a mount and on the disk below.

While ``cp`` copies a large file over and over on one filesystem, the saving client makes a
save every few milliseconds there.
"""

import subprocess
import time
from pathlib import Path

from benchmarks.bench import Bench, parse_saves, run_saves, save_command, side
from benchmarks.report import Fact, Report
from benchmarks.rows.copy import write_bytes
from benchmarks.stats import Goal, Ratio, Side, middle, percentile, ratio

TITLE = "small saves during a large copy, against alone"
PAUSE_US = 2000


def measure(bench: Bench) -> Report:
    alone = bench.pick(600, 150)
    large = bench.place("large")
    write_bytes(large, bench.pick(512, 128) << 20)
    rounds = bench.rounds_of(3, quick=1)
    below = bench.folder_below("below")
    found: dict[str, list[list[float]]] = {}
    copied: dict[str, list[float]] = {}
    with bench.mount() as mounted:
        folders = [("mount", "close", mounted.folder), ("below", "fsync", below)]
        for turn in range(rounds):
            for name, end, folder in folders if turn % 2 else reversed(folders):
                saves = folder / f"saves{turn}"
                saves.mkdir()
                (quiet,) = run_saves(bench, [(end, saves)], n=alone, p=PAUSE_US)
                busy, rate = save_beside_copy(bench, end, folder, saves, large)
                found.setdefault(f"alone, {name}", []).append(quiet.total)
                found.setdefault(f"beside a copy, {name}", []).append(busy)
                copied.setdefault(name, []).append(rate)
    sides = {name: side(name, each) for name, each in found.items()}
    facts: dict[str, Fact] = {
        f"copy beside it, {name}, MB/s": round(percentile(rates, 0.5)) for name, rates in copied.items()
    }
    ratios = []
    for name in ("mount", "below"):
        for at in (0.5, 0.99):
            words = f"beside / alone, {name}, p{at * 100:g}"
            ratios.append(ratio(sides[f"beside a copy, {name}"], sides[f"alone, {name}"], at, name=words))
    ratios.append(p99_ms(sides["beside a copy, mount"]))
    return Report(list(sides.values()), ratios, facts)


def p99_ms(beside: Side) -> Ratio:
    each = [percentile(part, 0.99) / 1000 for part in beside.rounds]
    return Ratio("p99 beside a copy, mount", *middle(each), Goal(10), "ms")


def save_beside_copy(
    bench: Bench, end: str, folder: Path, saves: Path, large: Path
) -> tuple[list[float], float]:
    """Latencies of the saves made while `large` is copied twice, and the copy's MB/s."""
    stop = bench.place("stop")
    target = folder / "large"
    command = save_command(bench, [(end, saves)], n=100_000, p=PAUSE_US, f=100_000, s=str(stop))
    seconds = 0.0
    # The client prints when it has stopped, so nothing waits in the pipe until then.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        try:
            for _ in range(2):
                seconds += timed_copy(large, target)
                target.unlink()
        finally:
            stop.touch()
        out, _ = client.communicate()
    if client.returncode:
        raise OSError("the saving client failed beside the copy")
    (taken,) = parse_saves(out, 1)
    return taken.total, 2 * large.stat().st_size / seconds / 1e6


def timed_copy(source: Path, target: Path) -> float:
    start = time.perf_counter()
    subprocess.run(["cp", source, target], check=True)
    subprocess.run(["sync", target], check=True)
    return time.perf_counter() - start
