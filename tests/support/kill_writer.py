"""One of the writers whose daemon is killed (tests/torture/kill.py): saves in a folder of its own on a
mount, and keeps a journal, outside the mount, of what it began and what returned.

    python -m tests.support.kill_writer MOUNT FOLDER JOURNAL COUNTERS NUMBER

A process that outlives the daemons it works with.  Each line on stdin is a command, answered by one line
on stdout, all JSON:

    ["make"]             make the folder, durable            null
    ["look", STATE]      compare the folder, live and in     [difference, …]
                         the newest commit
    ["work", SEED]       save until a call fails             [name of the error, when, where]

STATE maps names to [size, digest].  The journal has two lines for each step that changes what the
next commit holds: ``[number, durable, {name: [size, digest] or null}]`` before the call and
``[number]`` after it; `durable` says whether it is durable when the call returns.  COUNTERS is a file
of 64-bit numbers, of which the one at NUMBER counts the durable steps that returned.
"""

import errno
import hashlib
import json
import mmap
import os
import random
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

State = dict[str, tuple[int, str]]

NAMES = ("a", "b", "c", "d", "e", "f")
NOTHING: Mapping[str, bytes | None] = {}
PIECE = 128 << 10
LARGE = 1 << 20
"""Above this, contents are staged before their commit."""


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def entry(data: bytes) -> tuple[int, str]:
    return len(data), digest(data)


class Writer:
    def __init__(self, mount: Path, folder: str, journal: Path, counters: Path, number: int) -> None:
        self.mount = mount
        self.folder = folder
        self.journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with counters.open("r+b") as file:
            self.counters = mmap.mmap(file.fileno(), 0)
        self.number = number
        self.steps = 0
        self.returned = 0
        self.contents: dict[str, bytes] = {}
        """As the next commit point of each file will leave it."""
        self.held: tuple[int, bytes] | None = None
        """A file kept open with bytes that are at no commit point yet."""
        self.open_files: set[int] = set()
        self.random = random.Random()
        self.directory = -1

    # -- commands

    def make(self) -> None:
        os.mkdir(self.mount / self.folder)
        fd = os.open(self.mount, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def look(self, wanted: State) -> list[str]:
        differences = []
        for view in (self.mount, self.mount / ".commits/latest"):
            contents = {path.name: path.read_bytes() for path in (view / self.folder).iterdir()}
            found = {name: entry(data) for name, data in contents.items()}
            differences += [
                f"{view / self.folder / name} is {found.get(name)}, not {wanted.get(name)}"
                for name in sorted(found.keys() | wanted.keys())
                if found.get(name) != wanted.get(name)
            ]
            self.contents = contents
        return differences

    def work(self, seed: str) -> tuple[str, float, str]:
        self.random = random.Random(seed)
        acts: dict[Callable[[], None], int] = {
            self.save: 6,
            self.patch: 3,
            self.append: 4,
            self.replace: 4,
            self.rename_unclosed: 2,
            self.remove: 3,
            self.large: 1,
            self.hold_or_let_go: 3,
            self.write_synchronously: 2,
            self.cut: 2,
        }
        try:
            self.directory = self.open(self.mount / self.folder, os.O_RDONLY)
            while True:
                self.random.choices(list(acts), list(acts.values()))[0]()
        except OSError as error:
            when = time.monotonic()
            where = " ".join(
                f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
            )
            return errno.errorcode[error.errno or 0], when, where
        finally:
            self.held = None
            for fd in self.open_files:
                with suppress(OSError):
                    os.close(fd)
            self.open_files.clear()

    # -- acts

    def save(self) -> None:
        """Make a file, or overwrite it from its beginning."""
        name, data = self.any_name(), self.data()
        fd = self.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.write(fd, data)
        with self.step(True, {name: data}):
            self.close(fd)

    def patch(self) -> None:
        """Overwrite some bytes in the middle, and maybe some behind the end."""
        if not (name := self.old_name()):
            return
        old, new = self.contents[name], self.data()
        at = self.random.randint(0, len(old))
        fd = self.open(name, os.O_RDWR)
        os.lseek(fd, at, os.SEEK_SET)
        self.write(fd, new)
        with self.step(True, {name: old[:at] + new + old[at + len(new) :]}):
            self.close(fd)

    def append(self) -> None:
        if not (name := self.old_name()) or len(self.contents[name]) > 4 * PIECE:
            return
        new = self.data()
        fd = self.open(name, os.O_WRONLY | os.O_APPEND)
        self.write(fd, new)
        with self.step(True, {name: self.contents[name] + new}):
            self.close(fd)

    def replace(self) -> None:
        """As careful programs save: a new file, synced and closed, then renamed over the old one."""
        name, data = self.any_name(), self.data()
        fd = self.open("new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.write(fd, data)
        with self.step(True, {"new": data}):
            os.fsync(fd)
        self.close(fd)
        with self.step(False, {"new": None, name: data}):
            os.rename("new", name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        if self.random.random() < 0.5:
            with self.step(True):
                os.fsync(self.directory)

    def rename_unclosed(self) -> None:
        """A rename of a file with bytes at no commit point is one."""
        name, data = self.any_name(), self.data()
        fd = self.open("new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.write(fd, data)
        with self.step(True, {"new": None, name: data}):
            os.rename("new", name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        self.close(fd)

    def remove(self) -> None:
        if name := self.old_name():
            with self.step(False, {name: None}):
                os.unlink(name, dir_fd=self.directory)

    def large(self) -> None:
        """Contents that are staged: a new file, or most of an old one overwritten in its place."""
        data = self.random.randbytes(self.random.randint(LARGE, 3 * LARGE))
        old, at = self.contents.get("large", b""), 0
        how = self.random.choice([0, os.O_TRUNC])
        if old and not how:
            at = self.random.randint(0, len(old))
        fd = self.open("large", os.O_RDWR | os.O_CREAT | how)
        os.lseek(fd, at, os.SEEK_SET)
        self.write(fd, data)
        with self.step(True, {"large": data if how else old[:at] + data + old[at + len(data) :]}):
            self.close(fd)

    def hold_or_let_go(self) -> None:
        """A file synced, written to again and kept open while others are saved; closed the next time."""
        if self.held is None:
            fd = self.open("held", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            data = self.data()
            self.write(fd, data)
            with self.step(True, {"held": data}):
                os.fsync(fd)
            more = self.data()
            self.write(fd, more)
            self.held = fd, data + more
        else:
            (fd, data), more = self.held, self.data()
            self.held = None
            self.write(fd, more)
            with self.step(True, {"held": data + more}):
                self.close(fd)

    def write_synchronously(self) -> None:
        data = self.contents.get("sync", b"")
        how = self.random.choice([os.O_TRUNC, os.O_APPEND])
        if how == os.O_TRUNC:
            data = b""
        how |= self.random.choice([os.O_SYNC, os.O_DSYNC])
        fd = self.open("sync", os.O_WRONLY | os.O_CREAT | how)
        for _ in range(self.random.randint(1, 4)):
            new = self.random.randbytes(self.random.randint(1, 5000))
            data += new
            with self.step(True, {"sync": data}):
                self.write(fd, new)
        self.close(fd)

    def cut(self) -> None:
        if not (name := self.old_name()):
            return
        size = self.random.randint(0, len(self.contents[name]))
        fd = self.open(name, os.O_RDWR)
        os.ftruncate(fd, size)
        with self.step(True, {name: self.contents[name][:size]}):
            os.fsync(fd)
        self.close(fd)

    # -- what they are made of

    def any_name(self) -> str:
        return self.random.choice(NAMES)

    def old_name(self) -> str:
        """One that is there, "" if none is."""
        return self.random.choice([name for name in NAMES if name in self.contents] or [""])

    def data(self) -> bytes:
        return self.random.randbytes(self.random.choice([40, 2000, 2000, 6000, 70_000]) + self.steps % 7)

    def open(self, name: str | Path, flags: int) -> int:
        within = self.directory if isinstance(name, str) else None
        fd = os.open(name, flags, 0o644, dir_fd=within)
        self.open_files.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_files.discard(fd)
        os.close(fd)

    def write(self, fd: int, data: bytes) -> None:
        at = 0
        while at < len(data):  # where the daemon ends amid a write, that is short, and the next one fails
            at += os.write(fd, data[at : at + PIECE])

    @contextmanager
    def step(self, durable: bool, changes: Mapping[str, bytes | None] = NOTHING) -> Iterator[None]:
        """Around the one call that brings `changes` about: contents by name, None for what is removed."""
        self.steps += 1
        noted = {name: None if data is None else entry(data) for name, data in changes.items()}
        self.note([self.steps, durable, noted])
        yield
        self.note([self.steps])
        for name, data in changes.items():
            if data is None:
                self.contents.pop(name, None)
            else:
                self.contents[name] = data
        if durable:
            self.returned += 1
            struct.pack_into("=Q", self.counters, 8 * self.number, self.returned)

    def note(self, line: list[object]) -> None:
        os.write(self.journal, json.dumps(line).encode() + b"\n")


def main(mount: str, folder: str, journal: str, counters: str, number: str) -> None:
    writer = Writer(Path(mount), folder, Path(journal), Path(counters), int(number))
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer: object = None
        try:
            if command == "make":
                writer.make()
            elif command == "look":
                answer = writer.look({name: (size, hash_) for name, (size, hash_) in arguments[0].items()})
            else:
                answer = writer.work(arguments[0])
        except OSError as error:
            answer = [f"{command}: {error}"]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
