"""One file of 256 MiB: written in order, read cold and read warm, on a mount and on the disk below.

A write ends with fsync on both sides.  Cold means that neither the file's pages nor the store's
are in the page cache; warm is the read just after.
"""

import os
import time
from pathlib import Path

from benchmarks.bench import Bench, side
from benchmarks.report import Report
from benchmarks.stats import ratio

TITLE = "256 MiB written in order, read cold and read warm, against the disk below"
BLOCK = 1 << 20


def measure(bench: Bench) -> Report:
    size = bench.pick(256, 64) << 20
    rounds = bench.rounds_of(5, quick=2)
    block = os.urandom(BLOCK)
    store = bench.place("store.db")
    below = bench.new_folder("below")
    rates: dict[str, list[list[float]]] = {}
    with bench.mount(store) as mounted:
        for turn in range(rounds + 1):
            folders = [("mount", mounted.folder), ("below", below)]
            for name, folder in folders if turn % 2 else reversed(folders):
                path = folder / f"file{turn}"
                took = [write(path, block, size // BLOCK)]
                # The kernel's pages of the file, and those of the store that feeds them.
                evict(path)
                evict(store)
                took += [read(path), read(path)]
                path.unlink()
                if turn:
                    for what, seconds in zip(("write", "cold read", "warm read"), took, strict=True):
                        rates.setdefault(f"{what}, {name}", []).append([size / seconds / 1e6])
    sides = {name: side(name, each, "MB/s") for name, each in sorted(rates.items())}
    ratios = [
        ratio(sides[f"{what}, mount"], sides[f"{what}, below"], name=f"{what}, mount / below")
        for what in ("write", "cold read", "warm read")
    ]
    return Report(list(sides.values()), ratios)


def write(path: Path, block: bytes, blocks: int) -> float:
    start = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    for _ in range(blocks):
        if os.write(fd, block) != len(block):
            raise OSError("short write")
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - start


def read(path: Path) -> float:
    buffer = bytearray(BLOCK)
    start = time.perf_counter()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    while os.readv(fd, [buffer]):
        pass
    os.close(fd)
    return time.perf_counter() - start


def evict(path: Path) -> None:
    """Drop the file's clean pages from the page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
