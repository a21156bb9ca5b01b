"""Kill the daemon under many writers, again and again: ``python -m tests.torture.kill --rounds 500``.

Each round mounts a store where the dead mount of the round before still is, has writers in processes of
their own (tests/support/kill_writer.py) save until they have been told so many times, by chance, that
something is durable, and then kills the daemon with SIGKILL.  What the store holds is compared with their
journals (tests/support/kill_history.py): by a reader before the next mount, and by the writers themselves
behind it, live and in the newest commit.  One store goes on for some rounds, so that it grows; every few
rounds all of its history is compared from the beginning and `commitfs check` looks at all of it.  Now and
then a daemon is killed while it mounts, too.

Whoever waits, waits for a limited time: a mount that hangs is aborted and is a failure, and so is one that
serves and yet acknowledges nothing.  Ends with exit code 1 at the first round that is wrong, and says how;
the last line of the output has the counts.
"""

import argparse
import json
import mmap
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from commitfs.daemon.mountinfo import mounts
from commitfs.errors import CommitfsError
from commitfs.format.record import Record
from commitfs.store.store import Store
from tests.support.kill_history import BYTES, HALF, KINDS, LOST, OPEN, History, Ledger, Wrong
from tests.support.mounted import PROGRAM, Mount, commitfs, environment

WRITERS = 8
PATIENCE = 60.0
"""Seconds within which a mount that does not hang answers."""
DEAD = ("ENOTCONN", "ECONNABORTED", "EIO")
"""What calls fail with once the daemon was killed; the last is what now and then comes of a write that
passes through the page cache."""


class Hung(Exception):
    """Nothing happened for too long."""


class Writers:
    """The processes that save."""

    def __init__(self, mount: Path, folder: Path, count: int, patience: float) -> None:
        self.patience = patience
        counters = folder / "counters"
        counters.write_bytes(bytes(8 * count))
        with counters.open("r+b") as file:
            self._counters = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
        self.ledgers = [Ledger(f"w{n}", folder / f"journal{n}") for n in range(count)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.kill_writer"]
                + [str(part) for part in (mount, ledger.folder, ledger.journal, counters, number)],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number, ledger in enumerate(self.ledgers)
        ]

    def acknowledged(self) -> int:
        """How often any of them was told that something is durable, so far."""
        return sum(self._counters)

    def tell(self, commands: list[list[object]]) -> None:
        """Give each its command."""
        for process, command in zip(self._processes, commands, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()

    def answers(self) -> list[Any]:
        """What each has to say; Hung if one says nothing."""
        found = []
        for number, process in enumerate(self._processes):
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], self.patience)[0]:
                raise Hung(f"writer {number} does not answer")
            found.append(json.loads(process.stdout.readline()))
        return found

    def ask(self, commands: list[list[object]]) -> list[Any]:
        self.tell(commands)
        return self.answers()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate(timeout=self.patience)


class Torture:
    """One store after the other.  `counts` are those of the summary."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        writers: int = WRITERS,
        patience: float = PATIENCE,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.folder = folder
        self._program = program
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._writers = writers
        self._patience = patience

    def summary(self) -> str:
        counts = self.counts
        wrong = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        return (
            f"{counts['rounds']} rounds on {counts['stores']} stores ({counts['interrupted']} mounts killed "
            f"too), {counts['saves']} saves acknowledged: {wrong}; {counts['commits']} commits compared, "
            f"{counts['again']} of them again, {counts['checks']} checks"
        )

    def run(self, rounds: int, *, per_store: int = 20, every: int = 5) -> None:
        """So many rounds; all of history is looked at after `every` of them and at a store's end.
        Raises Wrong or Hung, with the store left where it was."""
        left = rounds
        while left > 0:
            turn = min(left, per_store)
            left -= turn
            with self.store() as one:
                for number in range(1, turn + 1):
                    one.round()
                    if number % every == 0 or number == turn:
                        one.all_of_history()
                one.last()

    @contextmanager
    def store(self) -> Iterator["OneStore"]:
        """A new store and its writers; gone afterwards unless something was wrong."""
        self.counts["stores"] += 1
        place = self.folder / f"store{self.counts['stores']}"
        with ExitStack() as stack:
            mount = Mount(place, watchdog=4 * self._patience, program=self._program)
            stack.callback(mount.close)
            writers = Writers(mount.path, place, self._writers, self._patience)
            stack.callback(writers.close)
            try:
                yield OneStore(mount, writers, self.random, self.counts)
            except Wrong as exc:
                self.counts[exc.kind] += 1
                raise
            except Hung:
                mount.abort()
                raise
        shutil.rmtree(place)


class OneStore:
    """The rounds of one store."""

    def __init__(self, mount: Mount, writers: Writers, chance: random.Random, counts: Counter[str]) -> None:
        self.mount = mount
        self.writers = writers
        self.random = chance
        self.counts = counts
        self.history = History(writers.ledgers)
        self.head: Record | None = None
        if any(writers.ask([["make"]] * len(writers.ledgers))):
            raise Wrong(OPEN, "the writers' folders cannot be made")

    def round(self) -> None:
        """Mount where that has to be, save, kill, compare."""
        if self.mount.process is None:
            self._mount()
        self._look()
        self._save_and_kill()
        self._compare()
        self.counts["rounds"] += 1

    def last(self) -> None:
        """Once more, without a kill."""
        self._mount()
        self._look()
        self.mount.unmount()
        if trouble := self.mount.trouble():
            raise Wrong(OPEN, f"the daemon complained: {trouble}")

    def _mount(self) -> None:
        if self.counts["rounds"] % 4 == 3:
            self.counts["interrupted"] += 1
            self.mount.start_and_kill(self.random.uniform(0.1, 0.6))
        try:
            self.mount.start()
        except AssertionError as exc:
            raise Wrong(OPEN, f"it does not mount: {exc}") from exc
        found = self._newest()
        if found != self.head:
            raise Wrong(LOST, f"recovered at {found}, while a reader found {self.head} before")
        if [mount.point for mount in mounts()].count(os.fsencode(self.mount.path)) != 1:
            raise Wrong(OPEN, "the dead mount is still there")

    def _look(self) -> None:
        """Every file live and in the newest commit, through the mount."""
        states = [ledger.steps[-1].state for ledger in self.writers.ledgers]
        for differences in self.writers.ask([["look", state] for state in states]):
            if differences:
                raise Wrong(BYTES, "; ".join(differences))

    def _save_and_kill(self) -> None:
        writers, mount = self.writers, self.mount
        assert mount.process is not None
        number = self.counts["rounds"]
        enough = writers.acknowledged() + self.random.randint(1, self.random.choice([1, 30, 300, 1500]))
        seed = self.random.random()
        writers.tell([["work", f"{seed} {number} {ledger.folder}"] for ledger in writers.ledgers])
        deadline = time.monotonic() + writers.patience
        while writers.acknowledged() < enough:
            if time.monotonic() > deadline:
                raise Hung("the mount serves, and acknowledges too little")
            if mount.process.poll() is not None:
                raise Wrong(OPEN, f"the daemon ended by itself: {mount.stderr_text()}")
            time.sleep(0.001)
        time.sleep(self.random.uniform(0, 0.01))
        killed = time.monotonic()
        mount.kill9()
        for ledger, (error, when, where) in zip(writers.ledgers, writers.answers(), strict=True):
            if error not in DEAD or when < killed:
                said = f"{error} in {where}, {killed - when:.3f} s before the kill"
                raise Wrong(OPEN, f"{ledger.folder} was stopped by {said}: {mount.stderr_text()}")

    def _compare(self) -> None:
        before, compared = sum(ledger.returned for ledger in self.writers.ledgers), self.history.compared
        for ledger in self.writers.ledgers:
            ledger.read()
        self._walk(self.history)
        self.history.settle_accounts()
        self.head = self.history.last
        self.counts["saves"] += sum(ledger.returned for ledger in self.writers.ledgers) - before
        self.counts["commits"] += self.history.compared - compared

    def all_of_history(self) -> None:
        """From the first commit on, with nothing remembered; and `commitfs check`."""
        again = History(self.writers.ledgers)
        self._walk(again)
        if again.last != self.history.last:
            raise Wrong(LOST, f"{again.last} is the newest now, {self.history.last} was")
        self.counts["again"] += again.compared
        done = commitfs("check", self.mount.store, timeout=600)
        if done.returncode != 0:
            raise Wrong(HALF, f"check finds damage: {done.stdout}{done.stderr}")
        self.counts["checks"] += 1

    def _walk(self, history: History) -> None:
        try:
            store = Store.open(self.mount.store)
        except (CommitfsError, OSError) as exc:
            raise Wrong(OPEN, f"a reader cannot open it: {exc}") from exc
        try:
            history.go_on(store)
        finally:
            store.close()

    def _newest(self) -> Record | None:
        store = Store.open(self.mount.store)
        store.close()
        return store.head


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=500, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of acts and moments")
    parser.add_argument("--per-store", type=int, default=20, metavar="N", help="rounds until a new store")
    parser.add_argument("--every", type=int, default=5, metavar="N", help="rounds until all is compared")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where to put a store found wrong")
    args = parser.parse_args()
    started = time.monotonic()
    code = 0
    with tempfile.TemporaryDirectory(prefix="commitfs-kill-") as name:
        torture = Torture(Path(name), args.seed)
        try:
            torture.run(args.rounds, per_store=args.per_store, every=args.every)
        except (Wrong, Hung) as exc:
            code = 1
            print(f"wrong in round {torture.counts['rounds'] + 1}: {exc}", file=sys.stderr)
            for store in Path(name).glob("*/s.db") if args.keep else ():
                shutil.copy(store, args.keep)
        finally:
            print(f"{torture.summary()}, {time.monotonic() - started:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    # As an exception, so that mounts and folders go as they do at the end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
