"""A program whose files count: whoever reads one of them can tell which save it is, and whether it is whole.

    python -m tests.support.counting FOLDER COUNTER

saves `n` again and again, the next number each time, and now and then `m`, of all sizes, until a call
fails or it is ended.  COUNTER is a file of one 64-bit number: the last one whose close returned.
"""

import mmap
import os
import random
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.support.mounted import environment

SIZE = 4000
"""Of `n`: always the same and within a page, so that one read sees one save of a file that changes."""
_SIZES = (10, 20, 100, 7000, 70_000)
_NUMBER = struct.Struct("=Q")


def contents(number: int, size: int = SIZE) -> bytes:
    """A save: `size` bytes, an even number from 10 on, all of them printable."""
    return b"%010d" % number + random.Random(number).randbytes(size // 2 - 5).hex().encode()


def number_of(data: bytes) -> int:
    """Which save it is; AssertionError if it is none, or not all of it."""
    number = int(data[:10])
    assert data == contents(number, len(data)), f"save {number} is not whole: {len(data)} bytes"
    return number


def save(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for at in range(0, len(data), 1 << 17):
            os.write(fd, data[at : at + (1 << 17)])
    except BaseException:
        with suppress(OSError):
            os.close(fd)
        raise
    os.close(fd)


class Counter:
    """The number behind COUNTER, shared with the process that saves."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_NUMBER.size))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)

    @property
    def value(self) -> int:
        number: int = _NUMBER.unpack_from(self._shared)[0]
        return number

    @value.setter
    def value(self, number: int) -> None:
        _NUMBER.pack_into(self._shared, 0, number)


class Counting:
    """The process; ends with its mount, or when closed."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.counter = Counter(path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.counting", str(folder), str(path)], env=environment()
        )

    def until(self, number: int, patience: float) -> None:
        """Return when so many saves have returned; AssertionError when that takes too long."""
        deadline = time.monotonic() + patience
        while self.counter.value < number:
            assert self.process.poll() is None, "it can save no more"
            assert time.monotonic() < deadline, f"only {self.counter.value} saves returned"
            time.sleep(0.001)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)


def main(folder: str, path: str) -> None:
    counter = Counter(Path(path))
    # What did not return may be there all the same, and a number is never used twice.
    number = counter.value + 1
    with suppress(OSError):
        while True:
            number += 1
            save(Path(folder, "n"), contents(number))
            counter.value = number
            if number % 7 == 0:
                save(Path(folder, "m"), contents(number, _SIZES[number // 7 % len(_SIZES)]))
            if number % 150 == 0:
                save(Path(folder, "m"), contents(number, 1_500_000))


if __name__ == "__main__":
    main(*sys.argv[1:])
