"""A mount served by a daemon in the foreground, so that its process is known and can be watched."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
WAIT = 30.0
"""Seconds a mount or an unmount may take before the row is given up."""


class MountError(Exception):
    """The daemon did not serve, or did not end; the message holds what it said."""


class Mounted:
    """Context manager: `folder` serves what ``python WORDS`` puts there, and is unmounted after it."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.folder = folder
        self._words = list(words)
        self._said = folder.with_name(folder.name + ".stderr")
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    def __enter__(self) -> Self:
        before = self.folder.stat().st_dev
        with self._said.open("wb") as said:
            self._daemon = subprocess.Popen(
                [sys.executable, *self._words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        deadline = time.monotonic() + WAIT
        while self.folder.stat().st_dev == before:
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                self._stop()
                raise MountError(f"no mount: {self._heard()}")
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._daemon is not None and self._daemon.poll() is not None:
            self._unmount("-uz")
            raise MountError(f"the daemon ended: {self._heard()}")
        self._unmount("-u")
        self._stop()

    def _heard(self) -> str:
        return self._said.read_text(errors="replace").strip() or "it said nothing"

    def _unmount(self, how: str) -> None:
        done = subprocess.run(["fusermount3", how, self.folder], capture_output=True, check=False)
        if done.returncode and how != "-uz":
            self._unmount("-uz")

    def _stop(self) -> None:
        assert self._daemon is not None
        try:
            self._daemon.wait(WAIT)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
            raise MountError("the daemon did not end after its unmount") from None


def commitfs(store: Path, folder: Path, *options: str) -> Mounted:
    """A mount of `store` on `folder` with commitfs in the foreground."""
    chosen = [word for option in options for word in ("-o", option)]
    return Mounted(["-m", "commitfs", "mount", "-f", *chosen, str(store), str(folder)], folder)


class Memory:
    """Context manager: samples a process's own memory (RssAnon) every 20 ms while it lasts.

    Pages of files are left out: a C library's pages are not what a copy can make grow.
    """

    def __init__(self, pid: int, every: float = 0.02) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.first = 0.0
        self.peak = 0.0
        self.last = 0.0

    def _read(self) -> float:
        """MiB of RssAnon now."""
        for line in self._status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def _watch(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self.last = self._read()
            except OSError:
                return
            self.peak = max(self.peak, self.last)

    def __enter__(self) -> Self:
        self.first = self.peak = self.last = self._read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
