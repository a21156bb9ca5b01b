"""Read a store while its writer is at full speed, is killed and is replaced:
``python -m tests.torture.readers --rounds 100``.

Readers of all kinds work on through all rounds: the library, a read-only mount, `commitfs log`, `cat` and
`check`.  In each round a daemon recovers the store and a program saves numbered files through it, with the
tail extended and large files staged on the way; then the daemon is killed.  In every other round half a
commit is left behind the end, as a power cut would, and the next writer cuts it off under the readers' eyes.
One store goes on for some rounds.

No reader may see anything that is not a whole save, go back to an older one, miss one that had returned
before it looked, see an old commit change, or report damage.  Ends with exit code 1 if one does.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from commitfs.format.record import RECORD_SIZE
from commitfs.store.store import Store
from commitfs.vfs.snapshot import Snapshot
from tests.support.counting import Counter as Returned
from tests.support.counting import Counting, number_of
from tests.support.mounted import Mount, commitfs

PATIENCE = 60.0
"""Seconds within which what does not hang has happened."""


class Readers:
    """Threads, each with one way to look at the store, over and over until they are stopped."""

    def __init__(self, store: Path, mount: Path, returned: Returned) -> None:
        self.store = store
        self.mount = mount
        self.returned = returned
        self.looks: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._numbers: dict[int, int] = {}
        """Which save each commit held, whoever looked first."""
        self._stop = threading.Event()
        ways = (self.library, self.mounted, self.log, self.cat, self.check)
        self._threads = [threading.Thread(target=self._work, args=(way,), daemon=True) for way in ways]
        for thread in self._threads:
            thread.start()

    def _work(self, way: Callable[[Callable[[], bool]], None]) -> None:
        def more() -> bool:
            self.looks[way.__name__] += 1
            return not self._stop.is_set()

        try:
            way(more)
        except Exception as exc:
            self.wrong.append(f"{way.__name__}: {type(exc).__name__}: {exc}")

    def stop(self) -> None:
        """End them; what they found is in `wrong`."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self.wrong.append("a reader hangs")

    def _forward(self, before: int, seen: int, returned: int) -> int:
        assert seen >= before, f"went back from {before} to {seen}"
        assert seen >= returned, f"sees {seen}, but {returned} had returned"
        return seen

    def _same(self, commit: int, number: int) -> None:
        known = self._numbers.setdefault(commit, number)
        assert known == number, f"commit {commit} held save {known} and holds {number} now"

    def library(self, more: Callable[[], bool]) -> None:
        store, chance = Store.open(self.store), random.Random(1)
        number = newest = 0

        def look(commit: int) -> int:
            snapshot = Snapshot(store, store.record(commit))
            found = number_of(snapshot.read(snapshot.resolve(b"n"), 0, 1 << 20))
            self._same(commit, found)
            return found

        first = int(store.durable_id)
        while more():
            returned = self.returned.value
            store.refresh()
            newest = self._forward(newest, int(store.durable_id), 0)
            number = self._forward(number, look(newest), returned)
            look(chance.randint(first, newest))
        store.close()

    def mounted(self, more: Callable[[], bool]) -> None:
        number = newest = 0
        while more():
            returned = self.returned.value
            number = self._forward(number, number_of((self.mount / "n").read_bytes()), returned)
            commit = int(os.readlink(self.mount / ".commits/latest"))
            newest = self._forward(newest, commit, 0)
            folder = self.mount / f".commits/{commit:08}"
            self._same(commit, number_of((folder / "n").read_bytes()))
            number_of((folder / "m").read_bytes())

    def log(self, more: Callable[[], bool]) -> None:
        newest = 0
        while more():
            done = commitfs("log", self.store, "-n", "20", "--json")
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            newest = self._forward(newest, lines[0]["id"], 0)
            assert [line["id"] for line in lines] == list(range(newest, newest - len(lines), -1))
            assert {change["path"] for line in lines for change in line["changes"]} <= {"", "n", "m"}

    def cat(self, more: Callable[[], bool]) -> None:
        number = 0
        while more():
            returned = self.returned.value
            done = commitfs("cat", self.store, "latest", "n")
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
            number = self._forward(number, number_of(done.stdout.encode()), returned)

    def check(self, more: Callable[[], bool]) -> None:
        while more():
            done = commitfs("check", self.store)
            assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def leave_half_a_commit(path: Path) -> None:
    """Behind the end, as a writer does whose write did not get further."""
    store = Store.open(path)
    record, end = store.head, store.published_end
    store.close()
    assert record is not None
    with path.open("r+b") as file:
        file.seek(record.offset)
        torn = file.read(RECORD_SIZE + record.length // 2)
        file.seek(end)
        file.write(torn)


def torture(folder: Path, rounds: int, saves: int, seed: int = 1) -> tuple[Readers, int]:
    """So many writers, each killed after up to `saves` saves; the readers, and how many saves returned."""
    chance = random.Random(seed)
    returned = folder / "returned"
    with ExitStack() as stack:
        writer = Mount(folder, watchdog=10 * PATIENCE)
        stack.callback(writer.close)
        readers: Readers | None = None
        for number in range(rounds):
            if writer.process is None:
                writer.start()
            counting = Counting(writer.path, returned)
            stack.callback(counting.close)
            start = counting.counter.value
            counting.until(start + 20, PATIENCE)
            if readers is None:
                beside = Mount(folder / "beside", "ro", store=writer.store, watchdog=1e6)
                stack.callback(beside.close)
                readers = Readers(writer.store, beside.path, counting.counter)
                stack.callback(readers.stop)
            counting.until(start + chance.randint(20, saves), PATIENCE)
            writer.kill9()
            counting.process.wait(timeout=PATIENCE)
            if number % 2:
                leave_half_a_commit(writer.store)
            looks = min(readers.looks.values())
            deadline = time.monotonic() + PATIENCE
            while not readers.wrong and min(readers.looks.values()) == looks:
                assert time.monotonic() < deadline, "a reader hangs"
                time.sleep(0.001)
            if readers.wrong:
                break
        assert readers is not None
        readers.stop()
        if trouble := beside.trouble() + writer.trouble():
            readers.wrong.append(f"a daemon complained: {trouble}")
        return readers, counting.counter.value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=100, metavar="N")
    parser.add_argument("--saves", type=int, default=2000, metavar="N", help="at most, of one round")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--per-store", type=int, default=20, metavar="N", help="rounds until a new store")
    args = parser.parse_args()
    started = time.monotonic()
    done = saves = 0
    looks: Counter[str] = Counter()
    wrong: list[str] = []
    while done < args.rounds and not wrong:
        rounds = min(args.per_store, args.rounds - done)
        with tempfile.TemporaryDirectory(prefix="commitfs-readers-") as name:
            readers, returned = torture(Path(name), rounds, args.saves, args.seed + done)
        done += rounds
        saves += returned
        looks += readers.looks
        wrong += readers.wrong
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    counts = ", ".join(f"{way} {count}" for way, count in looks.items())
    print(
        f"{done} writers killed, {saves} saves, looks: {counts}; {len(wrong)} readers saw something wrong, "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    # As an exception, so that mounts and folders go as they do at the end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
