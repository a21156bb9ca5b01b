"""Long seeded walks of the vfs beside the model: `python -m tests.torture.vfs_model --seeds 20 --steps 2000`.

Unlike the Hypothesis test it prefers paths that exist, so that nearly every step does something.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import trio

from commitfs.vfs.namespace import RENAME_EXCHANGE, RENAME_NOREPLACE
from tests.support.model_fs import Model, Thing
from tests.support.world import open_vfs
from tests.vfs.test_model import Machine

NAMES = [b"a", b"b", b"c", b"d.txt", b"\xff\n", b"x" * 255]


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = Model()
        self.done: Counter[str] = Counter()

    def paths(self, kind: str = "") -> list[tuple[bytes, ...]]:
        found: list[tuple[bytes, ...]] = []

        def visit(path: tuple[bytes, ...], thing: Thing) -> None:
            for name, child in thing.names.items():
                if kind in ("", child.kind):
                    found.append((*path, name))
                visit((*path, name), child)

        visit((), self.model.root)
        return found

    def old(self, kind: str = "") -> tuple[bytes, ...]:
        found = self.paths(kind)
        return self.random.choice(found) if found else self.new()

    def new(self) -> tuple[bytes, ...]:
        parents = [(), *(path for path in self.paths("dir") if len(path) < 5)]
        return (*self.random.choice(parents), self.random.choice(NAMES))

    def any(self) -> tuple[bytes, ...]:
        return self.old() if self.random.random() < 0.6 else self.new()

    def data(self) -> bytes:
        pick = self.random.random()
        length = self.random.randint(1, 50) if pick < 0.6 else self.random.randint(1, 200_000)
        if pick > 0.98:
            length = self.random.randint(1 << 20, 3 << 20)
        return self.random.randbytes(length)

    def offset(self) -> int:
        return self.random.choice(
            [0, self.random.randint(0, 100), self.random.randint(0, 70_000), self.random.randint(0, 1 << 20)]
        )

    async def step(self, machine: Machine) -> None:
        rand = self.random
        index = rand.randint(0, 5)
        acts = {
            "create": lambda: machine.create(self.new()),
            "open": lambda: machine.open(self.old("file"), rand.random() < 0.7, rand.random() < 0.3),
            "write": lambda: machine.write(index, self.offset(), self.data()),
            "close": lambda: machine.close(index),
            "flush": lambda: machine.flush(index),
            "fsync": lambda: machine.fsync(index),
            "ftruncate": lambda: machine.ftruncate(index, self.offset()),
            "truncate": lambda: machine.truncate(self.old("file"), self.offset()),
            "save": lambda: machine.save(self.any(), self.data()),
            "mkdir": lambda: machine.mkdir(self.new()),
            "symlink": lambda: machine.symlink(self.new(), b"t" * rand.randint(1, 2000)),
            "unlink": lambda: machine.unlink(self.old()),
            "rmdir": lambda: machine.rmdir(self.old("dir")),
            "rename": lambda: machine.rename(
                self.old(), self.any(), rand.choice([0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE])
            ),
            "link": lambda: machine.link(self.old("file"), self.new()),
            "chmod": lambda: machine.chmod(self.old(), rand.randint(0, 0o7777)),
            "setxattr": lambda: machine.setxattr(
                self.old(), rand.choice(NAMES[:4]), rand.randbytes(rand.choice([0, 9, 5000]))
            ),
            "removexattr": lambda: machine.removexattr(self.old(), rand.choice(NAMES[:4])),
            "settle": machine.settle,
        }
        weights = {"save": 6, "write": 4, "create": 2, "rename": 3, "unlink": 2, "close": 3}
        name = rand.choices(list(acts), [weights.get(act, 1) for act in acts])[0]
        if name == "create" and len(machine.handles) > 8:
            name = "close"
        self.done[name] += 1
        await acts[name]()

    async def run(self, store: Path, steps: int, every: int) -> None:
        left = steps
        while left > 0:
            turn = min(left, self.random.randint(1, 200))
            left -= turn
            async with open_vfs(store) as vfs:
                machine = Machine(vfs, self.model)
                await machine.check()
                checked = len(self.model.commits)
                for number in range(turn):
                    await self.step(machine)
                    if number % every == 0:
                        await machine.check()
                        for commit in range(checked + 1, len(self.model.commits) + 1):
                            await machine.check_commit(commit)
                        checked = len(self.model.commits)
                while machine.handles:
                    await machine.close(0)
                await machine.settle()
                await machine.check()
                count = len(self.model.commits)
                for commit in self.random.sample(range(1, count + 1), min(count, 10)):
                    await machine.check_commit(commit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=5, help="compare everything after so many steps")
    options = parser.parse_args()
    steps = commits = 0
    for seed in range(options.first, options.first + options.seeds):
        walk = Walk(seed)
        with tempfile.TemporaryDirectory() as folder:
            try:
                trio.run(walk.run, Path(folder) / "store.db", options.steps, options.every)
            except BaseException:
                print(f"seed {seed} fails after {sum(walk.done.values())} steps", file=sys.stderr)
                raise
        steps += sum(walk.done.values())
        commits += len(walk.model.commits)
    print(f"{options.seeds} seeds, {steps} steps, {commits} commits: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
