"""strace from the tests: whether it may trace here, and faults that it injects into a running process."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ATTACH_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Injection:
    """What happens to calls of one kind."""

    call: str
    """Name of the system call; several with commas between."""
    what: str
    """``error=EIO``, ``retval=0``, ``signal=SIGKILL``, as strace has it."""
    when: str = "1+"
    """``3``: the third call of each thread; ``3+``: that and all later ones."""

    def words(self) -> list[str]:
        """Arguments of strace."""
        inject = f"inject={self.call}:{self.what}:when={self.when}"
        return ["-e", f"trace={self.call}", "-e", "signal=none", "-e", inject]

    def __str__(self) -> str:
        return f"{self.call}:{self.what}:when={self.when}"


def command(injection: Injection, log: Path, store: Path | None) -> list[str]:
    """strace's words for one injection, only into calls that concern the file `store` if that is given.
    Put ``-p PID`` or a command behind them."""
    words = ["strace", "-f", "-q", "-o", str(log), *injection.words()]
    if store is not None:
        # Its further descriptors are opened by way of the first.
        for path in (store, *(f"/proc/self/fd/{number}" for number in range(3, 20))):
            words += ["-P", str(path)]
    return words


def struck(log: Path) -> int:
    """How many calls were tampered with, by strace's log; one that killed its process did not return."""
    text = log.read_text(errors="replace") if log.exists() else ""
    unfinished = text.count("<unfinished ...>") - text.count(" resumed>")
    return text.count("(INJECTED)") or len(re.findall(r" = \?$", text, re.MULTILINE)) or unfinished


@cache
def tracing_missing() -> str:
    """Why strace cannot trace here; empty if it can, another process than its own child included."""
    if shutil.which("strace") is None:
        return "no strace"
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with injected(sleeper.pid, Injection("sync", "error=EIO"), Path(os.devnull)):
            pass
    except AssertionError as error:
        return f"strace may not trace here: {error}"
    finally:
        sleeper.communicate(b"\n")
    return ""


@contextmanager
def injected(pid: int, injection: Injection, log: Path, store: Path | None = None) -> Iterator[None]:
    """Faults in a running process, for as long as the block lasts or the process lives."""
    tracer = subprocess.Popen(
        [*command(injection, log, store), "-p", str(pid)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for_tracer(pid, tracer)
        yield
    finally:
        if not _ended(pid):  # else strace ends by itself, having written down why
            tracer.terminate()
        tracer.communicate(timeout=60)


def _wait_for_tracer(pid: int, tracer: "subprocess.Popen[str]") -> None:
    """Return when every thread is traced."""
    until = time.monotonic() + _ATTACH_SECONDS
    while not all(_traced(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            raise AssertionError(tracer.stderr.read().strip() or "strace ended")
        assert time.monotonic() < until, "strace does not attach"
        time.sleep(0.002)


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _traced(task: Path) -> bool:
    try:
        status = (task / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # a thread that ended
        return True
    return "TracerPid:\t0\n" not in status
