"""What every row is handed: a folder on the disk to measure, the C programs, sizes, mounts."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from benchmarks.mounted import Mounted, commitfs
from benchmarks.stats import Side

SOURCES = Path(__file__).parent / "c"
RECORD = 128
"""Bytes of a commit's record."""
SAVE = 2048
"""Bytes of the save that most rows are about."""


@dataclass(frozen=True)
class Bench:
    """`folder` is empty at the start and removed by who made it; `quick` asks for small counts."""

    folder: Path
    quick: bool = False
    rounds: int = 0

    def pick(self, full: int, quick: int) -> int:
        """A count: the full one, or the one that only shows whether something is badly off."""
        return quick if self.quick else full

    def rounds_of(self, full: int, quick: int = 3) -> int:
        return self.rounds or self.pick(full, quick)

    @cached_property
    def _numbers(self) -> "count[int]":
        return count()

    def place(self, name: str) -> Path:
        """A path that nothing is at yet."""
        return self.folder / f"{next(self._numbers):03}-{name}"

    def new_folder(self, name: str) -> Path:
        path = self.place(name)
        path.mkdir()
        return path

    def folder_below(self, name: str, tries: int = 12) -> Path:
        """A new folder on the disk itself in which files are made as quickly as that disk can.

        Spread folders may still land where inodes were freed in the last minutes (machine.py), so
        of some that are tried the one is taken whose first files took least.
        """
        found: list[tuple[float, Path]] = []
        for _ in range(tries):
            folder = self.new_folder(name)
            start = time.perf_counter()
            for i in range(10):
                (folder / f"try{i}").touch()
            found.append((time.perf_counter() - start, folder))
        return min(found)[1]

    def program(self, name: str) -> Path:
        """The C program ``c/NAME.c``, compiled on first use."""
        path = self.folder / name
        if not path.exists():
            flags = ["-O2", "-std=c11", "-Wall", "-pthread"]
            source = SOURCES / f"{name}.c"
            subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", path, source], check=True)
        return path

    def bare(self, mode: str, path: Path, commits: int) -> list[float]:
        """Microseconds of each of `commits` writes and syncs in C; `mode` fdatasync or dsync."""
        command: list[str | Path] = [self.program("bare"), mode, path, str(RECORD), str(SAVE), str(commits)]
        out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
        return [int(line) / 1000 for line in out.splitlines()]

    @contextmanager
    def mount(self, store: Path | None = None, *options: str) -> Iterator[Mounted]:
        """A mount of `store` (a new one without), served by a daemon of its own."""
        with commitfs(store or self.place("store.db"), self.new_folder("mnt"), *options) as mounted:
            yield mounted

    @contextmanager
    def floor(self) -> Iterator[Mounted]:
        """A mount of the least a filesystem in Python does (see floor.py)."""
        folder = self.new_folder("floor")
        with Mounted(["-m", "benchmarks.floor", str(self.place("log")), str(folder)], folder) as mounted:
            yield mounted


@dataclass(frozen=True, slots=True)
class Saves:
    """What the C client says of one side: microseconds per save and their parts, and in all."""

    total: list[float]
    opened: list[float]
    written: list[float]
    ended: list[float]
    wall: float


def save_command(bench: Bench, ends: Sequence[tuple[str, Path]], **options: int | str) -> list[str]:
    """The command line of the saving client; options by letter (see c/save.c)."""
    command = [str(bench.program("save"))]
    for letter, value in options.items():
        command += [f"-{letter}", str(value)]
    return command + [f"{end}:{folder}" for end, folder in ends]


def parse_saves(out: str, sides: int) -> list[Saves]:
    """What the saving client printed, by side."""
    found = [Saves([], [], [], [], 0.0) for _ in range(sides)]
    walls = [0.0] * sides
    for line in out.splitlines():
        words = line.split()
        if words[0] == "wall":
            walls[int(words[1])] = int(words[2]) / 1000
            continue
        side = found[int(words[0])]
        for column, word in zip((side.total, side.opened, side.written, side.ended), words[1:], strict=True):
            column.append(int(word) / 1000)
    return [Saves(s.total, s.opened, s.written, s.ended, wall) for s, wall in zip(found, walls, strict=True)]


def run_saves(bench: Bench, ends: Sequence[tuple[str, Path]], **options: int | str) -> list[Saves]:
    out = subprocess.run(save_command(bench, ends, **options), stdout=subprocess.PIPE, check=True, text=True)
    return parse_saves(out.stdout, len(ends))


def side(name: str, rounds: Sequence[Sequence[float]], unit: str = "us") -> Side:
    return Side(name, unit, tuple(tuple(part) for part in rounds))
