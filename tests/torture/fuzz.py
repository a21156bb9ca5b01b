"""Fuzz every parser: ``python -m tests.torture.fuzz --inputs 10000000``.

Inputs are mutated from sound ones and from those that were accepted on the way, and given in turn to all
targets of tests/support/fuzz_targets.py.  With ``--sanitized`` the C part is built anew and runs under the
address and undefined behaviour sanitizers.  With ``--coverage`` atheris, which has to be installed, steers
the inputs by the lines of Python that they reach; one target after the other, in a process each.

Ends with exit code 1 at the first input that breaks something, and prints it in hex.
"""

import argparse
import importlib
import subprocess
import sys
import time
from collections import Counter

from tests.support.fuzz_targets import TARGETS, Mutator, seeds
from tests.torture.sanitized import sanitized_copy, see_canary

TURN = 1000
"""Inputs of one target before the next has its turn."""


def fuzz(names: list[str], inputs: int, seed: int) -> int:
    mutators = {name: Mutator(seeds(name), seed * 1000 + at) for at, name in enumerate(names)}
    for name, mutator in mutators.items():
        for data in mutator.corpus:
            TARGETS[name](data)
    tried: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    started = told = time.monotonic()
    while tried.total() < inputs:
        for name in names:
            mutator, target = mutators[name], TARGETS[name]
            for _ in range(min(TURN, inputs - tried.total())):
                data = mutator.next()
                try:
                    taken = target(data)
                except Exception as error:
                    print(f"{name}: {type(error).__name__}: {error}\n{data.hex()}", file=sys.stderr)
                    return 1
                tried[name] += 1
                if taken:
                    accepted[name] += 1
                    mutator.accepted(data)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"{tried.total()} inputs, {told - started:.0f} s", flush=True)
    for name in names:
        print(f"{name}: {tried[name]} inputs, {accepted[name]} accepted")
    print(f"{tried.total()} inputs, 0 broken, {time.monotonic() - started:.0f} s")
    return 0


def cover(names: list[str], inputs: int, seed: int) -> int:
    """The same, steered by coverage: `inputs` for each target."""
    if len(names) > 1:
        for name in names:
            command = [sys.executable, "-m", "tests.torture.fuzz", "--coverage", "--target", name]
            done = subprocess.run([*command, "--inputs", str(inputs), "--seed", str(seed)], check=False)
            if done.returncode:
                return 1
        return 0
    (name,) = names
    atheris = importlib.import_module("atheris")
    target = TARGETS[name]

    def one(data: bytes) -> None:
        target(data)

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-runs={inputs}", f"-seed={seed}", "-verbosity=0", "-max_len=4096"], one)
    print(f"{name}: {inputs} inputs steered by coverage", flush=True)
    atheris.Fuzz()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--sanitized", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    options = parser.parse_args()
    names = options.target or list(TARGETS)
    if options.coverage:
        return cover(names, options.inputs, options.seed)
    if options.sanitized:
        with sanitized_copy() as (folder, environment):
            see_canary(folder, environment)
            arguments = [argument for argument in sys.argv[1:] if argument != "--sanitized"]
            command = [sys.executable, "-m", "tests.torture.fuzz", *arguments]
            return subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    return fuzz(names, options.inputs, options.seed)


if __name__ == "__main__":
    sys.exit(main())
