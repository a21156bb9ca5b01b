"""Real mounts for tests: the daemon in the foreground in a child process, and ways to look at it.

Works without pytest too (tests/torture, examples); what pytest needs of it is in conftest.py.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
PROGRAM = ("-m", "commitfs")

# Only commit points, looks into history and the unmount commit then: counts are exact however
# slow the machine is.
NO_TIMER = "settle=1000"

# Above every test's own time, below pytest's limit: a request that hangs in the kernel cannot be
# interrupted, it ends only when its daemon does.
WATCHDOG_SECONDS = 150.0

_TROUBLE = re.compile(r"Traceback|Warning:|\b(WARNING|ERROR|CRITICAL)\b")
_ID = re.compile(r"\d+")


def fuse_missing() -> str:
    """Why nothing can be mounted here; empty if it can."""
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse"
    if shutil.which("fusermount3") is None:
        return "no fusermount3 (package fuse3)"
    return ""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """For children: this checkout's commitfs, plain messages, nobody's git or vim settings."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env.update(LC_ALL="C", LANG="C", GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    for who in ("AUTHOR", "COMMITTER"):
        env[f"GIT_{who}_NAME"], env[f"GIT_{who}_EMAIL"] = "A Tester", "tester@example.org"
    # A repository in an old commit, or of another checkout, is nobody's trap here.
    env.update(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
    env.update(extra or {})
    return env


def commitfs(*args: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the command line; never raises for its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "commitfs", *map(str, args)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
        check=False,
    )


class Mount:
    """A store in `folder`/s.db, mounted at `folder`/m by a daemon that is this process's child."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        store: Path | None = None,
        watchdog: float = WATCHDOG_SECONDS,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Mounts at once.  `options` are those of ``-o``; `store` is another store file to use; `prefix`
        are words before the daemon's command, of a program that becomes it in the end; `variables` are
        added to its environment.

        A daemon that lives for more than `watchdog` seconds is killed.  `program`: the interpreter's
        arguments for a commitfs that is not as it should be.
        """
        self.prefix = prefix
        self.variables = variables
        self.watchdog = watchdog
        self.program = program
        self.store = store or folder / "s.db"
        self.path = folder / "m"
        self.options = options
        self.stderr_path = folder / "daemon.log"
        self.may_complain = False  # set by tests that make the daemon warn
        self.process: subprocess.Popen[bytes] | None = None
        self._watchdog: threading.Timer | None = None
        self._connection = -1
        self.path.mkdir(parents=True, exist_ok=True)
        self.start()

    def __truediv__(self, name: str | Path) -> Path:
        return self.path / name

    # -- life of the daemon

    @property
    def pid(self) -> int:
        assert self.process is not None, "not mounted"
        return self.process.pid

    def start(self, *options: str) -> None:
        """Mount; returns when the mount serves.  AssertionError with the daemon's words if it ends."""
        self._spawn(*options)
        assert self.process is not None
        self._watchdog = threading.Timer(self.watchdog, self._give_up)
        self._watchdog.daemon = True
        self._watchdog.start()
        while not self._serves():
            if self.process.poll() is not None:
                self._forget_process()
                raise AssertionError(f"the daemon ended: {self.stderr_text()}")
            time.sleep(0.005)

    def start_and_kill(self, seconds: float) -> None:
        """Begin to mount, and kill the daemon after so long, wherever it is by then."""
        self._spawn()
        time.sleep(seconds)
        self.kill9()

    def _spawn(self, *options: str) -> None:
        assert self.process is None, "mounted already"
        options = options or self.options
        command = [*self.prefix, sys.executable, *self.program, "mount"]
        command += [str(self.store), str(self.path), "-f"]
        if options:
            command += ["-o", ",".join(options)]
        with self.stderr_path.open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                env=environment(self.variables),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )

    def _serves(self) -> bool:
        # statvfs fails on a dead mount, where lstat and ismount still succeed.
        try:
            os.statvfs(self.path)
            device = os.stat(self.path).st_dev
        except OSError:
            return False
        if device == os.stat(self.path.parent).st_dev:
            return False
        self._connection = os.minor(device)
        return True

    def unmount(self) -> None:
        """Cleanly; returns when the daemon has ended, all is durable then."""
        assert self.process is not None, "not mounted"
        # RELEASEs under way do not make a mount busy, but a child that just ended may for a moment.
        for attempt in range(50):
            done = subprocess.run(
                ["fusermount3", "-u", self.path], capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                break
            assert "busy" in done.stderr, done.stderr
            assert attempt < 49, "the mount stays busy"
            time.sleep(0.02)
        code = self.process.wait(timeout=60)
        self._forget_process()
        assert code == 0, f"the daemon exited with {code}: {self.stderr_text()}"

    def kill9(self) -> None:
        """Kill the daemon and leave its dead mount behind."""
        assert self.process is not None, "not mounted"
        self.process.kill()
        self.process.wait()
        self._forget_process()

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end; returns the exit code."""
        assert self.process is not None, "not mounted"
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self._forget_process()
        return code

    def remount(self, *options: str) -> None:
        self.unmount()
        self.start(*options)

    def close(self) -> None:
        """Whatever happened: no mount and no daemon left.  The gentlest way that works."""
        process = self.process
        if process is not None:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                self.unmount()
        subprocess.run(["fusermount3", "-u", "-z", self.path], capture_output=True, check=False)
        if process is not None and process.poll() is None:
            for number in (0, signal.SIGTERM, signal.SIGKILL):
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
                    break
        self._forget_process()

    def _forget_process(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self.process = self._watchdog = None

    def _give_up(self) -> None:
        process = self.process
        if process is None:
            return
        with self.stderr_path.open("a") as stderr:
            stderr.write(f"ERROR of the test: killed after {self.watchdog} s\n")
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)  # its stacks, if it prints them; its end otherwise
        time.sleep(1)
        self.abort()

    def abort(self) -> None:
        """Free whoever waits for the daemon, even where it hangs beyond a signal; it is dead then."""
        assert self.process is not None, "not mounted"
        self.process.kill()
        try:
            self.process.wait(timeout=10)
            return  # its connection is gone, and the number may be another's by now
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(OSError):
            Path(f"/sys/fs/fuse/connections/{self._connection}/abort").write_text("1")

    # -- what the daemon said

    def stderr_text(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    def trouble(self) -> str:
        """All the daemon said if anything in it is a warning, an error or a traceback; else empty."""
        text = self.stderr_text()
        return text if not self.may_complain and _TROUBLE.search(text) else ""

    def peak_memory(self) -> int:
        """The daemon's largest resident set so far, bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    # -- history

    def ids(self) -> list[int]:
        """Ids of all commits, ascending.  Looking settles what is staged."""
        return sorted(int(name) for name in os.listdir(self / ".commits") if _ID.fullmatch(name))

    def n(self) -> int:
        """Number of commits."""
        return len(self.ids())

    def latest(self) -> int:
        return int(os.readlink(self / ".commits/latest"))

    def commit(self, commit_id: int) -> Path:
        return self / f".commits/{commit_id:08}"

    def newest(self) -> Path:
        return self.commit(self.latest())

    def views(self) -> Iterator[tuple[str, Path]]:
        """The live tree, the newest commit, and both again after a remount."""
        yield "live", self.path
        yield "newest commit", self.newest()
        self.remount()
        yield "live after a remount", self.path
        yield "newest commit after a remount", self.newest()

    def each_commit(self, name: str, since: int = 0) -> list[tuple[int, bytes | None]]:
        """Contents of `name` in every commit after `since`, oldest first; None where it is missing."""
        found: list[tuple[int, bytes | None]] = []
        for commit_id in self.ids():
            if commit_id > since:
                path = self.commit(commit_id) / name
                found.append((commit_id, path.read_bytes() if path.exists() else None))
        return found

    # -- acts

    def sh(
        self,
        script: str,
        *,
        shell: str = "bash",
        user: int | None = None,
        cwd: Path | None = None,
        check: bool = True,
        **variables: str | Path,
    ) -> str:
        """Run `script` with the mount as its folder and in $M; returns what it printed.

        `user`: as that user and group (for root only).  The folder is entered before the user is
        changed, so use relative paths then.
        """
        given = {"M": self.path, "S": self.store, **variables}
        done = subprocess.run(
            [shell, "-c", script],
            cwd=cwd or self.path,
            env=environment({name: str(value) for name, value in given.items()}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            timeout=self.watchdog,
            check=False,
        )
        output = os.fsdecode(done.stdout)
        if check:
            said = f"{output}{os.fsdecode(done.stderr)}"
            assert done.returncode == 0, f"{script!r} exited with {done.returncode}: {said}"
        return output

    def log(self, *args: str) -> list[dict[str, Any]]:
        """``commitfs log STORE … --json``, newest first."""
        done = commitfs("log", self.store, *args, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def stats(self) -> dict[str, Any]:
        """``commitfs stats STORE --json``."""
        done = commitfs("stats", self.store, "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def check(self) -> None:
        """``commitfs check`` finds nothing."""
        done = commitfs("check", self.store)
        assert done.returncode == 0, done.stdout + done.stderr
