"""Faults in a daemon that serves real programs: ``python -m tests.torture.faults``.

Each kind of system call on the store fails in each way, the first, the second, ... time it is made, until a
round in which it was not made so often; alone, and with every later one.  The same while the daemon starts.
Ends with exit code 1 if anything was wrong, and says what on standard error.  Needs strace and may trace.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.fault_rounds import WRONG, Outcome, Round, Template
from tests.support.mounted import fuse_missing
from tests.support.tracing import Injection, tracing_missing

KILL = "signal=SIGKILL"
ONCE = (KILL, "error=EINTR", "retval=100")
"""Not with every later call too: nothing dies twice, a call is interrupted only as often as signals come,
and of a device that only makes things up nothing can be read."""
NO_ROOM = ("error=ENOSPC", "error=EDQUOT", "error=EFBIG")
SERVING = {
    # Nothing written is the shortest short write; tests/mounted/test_limits.py has longer ones.
    "pwritev2": ("error=EIO", *NO_ROOM, "error=EINTR", "error=ENOSYS", "retval=0", KILL),
    "fdatasync": ("error=EIO", "error=ENOSPC", "error=EINTR", KILL),
    "fallocate": ("error=EIO", *NO_ROOM, "error=EINTR", "error=EOPNOTSUPP", KILL),
    # The last two: the end of the file in the middle of it, and bytes that nobody wrote.
    "pread64": ("error=EIO", "error=EINTR", "error=ENOMEM", KILL, "retval=0", "retval=100"),
}
OPENING = {
    "openat": ("error=EMFILE", "error=ENFILE", "error=EIO", "error=EACCES", KILL),
    "pread64": ("error=EIO", "error=EINTR", "error=ENOMEM", "retval=0", KILL),
    "fdatasync": ("error=EIO", KILL),
    "pwritev2": ("error=EIO", *NO_ROOM, KILL),
    "ftruncate": ("error=EIO", KILL),
    "fadvise64": ("error=EIO",),
    "lseek": ("error=EIO",),
    "fcntl": ("error=EIO", "error=ENOLCK"),
}


def plan() -> Iterator[tuple[bool, str, str, str]]:
    """(while opening, call, what, "" or "+" for all later calls too)"""
    for opening, table in ((False, SERVING), (True, OPENING)):
        for call, ways in table.items():
            for what in ways:
                for lasting in ("",) if what in ONCE else ("", "+"):
                    yield opening, call, what, lasting


def outcomes(template: Template, folder: Path, most: int, calls: list[str]) -> Iterator[Outcome]:
    """Of all rounds in which a fault struck."""
    number = 0
    for opening, call, what, lasting in plan():
        if calls and call not in calls:
            continue
        for at in range(1, most + 1):
            number += 1
            injection = Injection(call, what, f"{at}{lasting}")
            outcome = Round(template, folder / f"{number}", injection, opening=opening).run()
            if outcome.struck or outcome.wrong:
                yield outcome
            if not outcome.struck:
                break


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--most", type=int, default=8, metavar="N", help="up to the Nth call of a kind (8)")
    parser.add_argument("--call", action="append", default=[], help="only this system call; may be repeated")
    args = parser.parse_args()
    if missing := fuse_missing() or tracing_missing():
        print(f"nothing was tried: {missing}", file=sys.stderr)
        return 2
    # Not before what is mounted is unmounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    tried = told = refused = 0
    wrong: Counter[str] = Counter()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        template = Template(Path(name))
        for outcome in outcomes(template, Path(name), args.most, args.call):
            tried += 1
            told += outcome.told
            refused += bool(outcome.refused)
            wrong.update(outcome.wrong.keys())
            if outcome.wrong:
                print(f"wrong: {outcome}", file=sys.stderr)
            if sys.stdout.isatty():
                print(f"\r{tried} faults, now {outcome.injection}\x1b[K", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
    counts = {kind: wrong[kind] for kind in WRONG}
    print(
        f"{tried} faults tried, {told} acts of programs and {refused} starts refused: "
        f"{counts['lost']} lost, {counts['half']} half there, {counts['closed']} failed to open, "
        f"{counts['wrong']} wrong bytes, {counts['dead']} dead or hung, {counts['silent']} did not recover; "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
