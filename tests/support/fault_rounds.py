"""Rounds of real programs on a real mount whose daemon's system calls fail, and what is there afterwards.

A round copies a store with some history, mounts it, injects one fault into the daemon's calls on the store
(tests/support/tracing.py) while programs save and read, takes the fault away, goes on, mounts again and
compares everything with what the programs were told (tests/support/fault_ledger.py).
"""

import copy
import errno
import os
import random
import shutil
import signal
import stat
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from commitfs.daemon.preflight import is_dead
from commitfs.errors import CommitfsError
from commitfs.store.store import Store
from commitfs.vfs.snapshot import Snapshot
from tests.support.fault_ledger import Ledger, Version
from tests.support.mounted import NO_TIMER, Mount, commitfs, environment
from tests.support.tracing import Injection, command, injected, struck

WRONG = ("lost", "half", "closed", "wrong", "dead", "silent")
"""Acknowledged and not there; there in part; a store that does not open, or is damaged; bytes read that
nobody wrote; a daemon that ended or hung; saving that goes on failing when nothing else does."""
PASSING = ("ENOSPC", "EDQUOT", "EFBIG", "EINTR", "ENOMEM")
"""Errors after which saving works again without a remount."""
_HOLE = 100_000
_PATIENCE = 60.0
"""Seconds a program may take."""
_SMALL = 20
"""Small saves: more than there are commits between two slots."""


def noise(seed: object, size: int) -> bytes:
    return random.Random(repr(seed)).randbytes(size)


@dataclass(slots=True)
class Outcome:
    injection: Injection
    opening: bool
    struck: int = 0
    told: int = 0
    """Acts of programs that were refused."""
    refused: str = ""
    """Why the daemon did not start, where it did not."""
    wrong: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)
    """What exactly was wrong."""

    def note(self, kind: str, what: str) -> None:
        assert kind in WRONG
        self.wrong[kind] += 1
        self.first.append(f"{kind}: {what}")

    def __str__(self) -> str:
        where = "opening" if self.opening else "serving"
        return (
            f"{where} {self.injection}: {self.struck} struck, {self.told} told; {'; '.join(self.first[:4])}"
        )


class Template:
    """A store to begin with: files of several sizes, and commits in which they were different."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "template.db"
        self.ledger = Ledger()
        mount = Mount(folder / "template", NO_TIMER, store=self.store)
        try:
            for turn in range(3):
                for number, size in enumerate((10, 3000, 70_000, 200_000)):
                    self._save(mount, b"old%d" % number, noise((turn, number), size))
            self._save(mount, b"big", noise("big", 2_500_000))
        finally:
            mount.close()
        self.commits = trees(self.store)

    def _save(self, mount: Mount, name: bytes, data: bytes) -> None:
        self.ledger.attempt(name, data)
        (mount / os.fsdecode(name)).write_bytes(data)
        self.ledger.done(name)


def trees(store: Path) -> list[dict[bytes, bytes]]:
    """The files of every commit, oldest first; CommitfsError, OSError."""
    opened = Store.open(store)
    try:
        found = []
        for record in opened.records():
            snapshot = Snapshot(opened, record)
            files = [(path, ino) for path, ino, kind in snapshot.walk() if kind == stat.S_IFREG >> 12]
            found.append({path: snapshot.read(ino, 0, 1 << 30) for path, ino in files})
        return found[::-1]
    finally:
        opened.close()


class Round:
    def __init__(self, template: Template, folder: Path, injection: Injection, *, opening: bool) -> None:
        """With `opening` the fault is there while the daemon starts, and then no more."""
        self.template = template
        self.folder = folder
        self.injection = injection
        self.outcome = Outcome(injection, opening)
        self.ledger = copy.deepcopy(template.ledger)
        self.log = folder / "strace.log"
        self.store = folder / "s.db"
        self.mount: Mount | None = None

    @property
    def kills(self) -> bool:
        return "SIGKILL" in self.injection.what

    @property
    def passing(self) -> bool:
        """Whether the fault is one that leaves the store writable when it is over."""
        error = self.injection.what.removeprefix("error=")
        return error in PASSING and self.injection.call != "fdatasync"

    def run(self) -> Outcome:
        self.folder.mkdir()
        shutil.copyfile(self.template.store, self.store)
        try:
            if self.outcome.opening:
                self._open_faulty()
            else:
                self._serve_faulty()
            self._compare()
        finally:
            self.outcome.struck = struck(self.log)
            if self.mount is not None:
                self.mount.close()
        self.outcome.told = self.ledger.told
        shutil.rmtree(self.folder)
        return self.outcome

    # -- the fault

    def _open_faulty(self) -> None:
        """The daemon starts under strace: it serves, or says in one line why not.  There is something to
        recover: a hole behind the end, to be cut off."""
        os.truncate(self.store, self.store.stat().st_size + _HOLE)
        prefix = [*command(self.injection, self.log, self.store), "-D"]
        try:
            self.mount = Mount(self.folder, NO_TIMER, store=self.store, prefix=prefix)
        except AssertionError:
            said = (self.folder / "daemon.log").read_text(errors="replace")
            self.outcome.refused = said.strip()
            if not self.kills and not said.rstrip("\n").rsplit("\n", 1)[-1].startswith("commitfs: "):
                self.outcome.note("dead", f"the daemon ended: {said}")
            return
        self.mount.may_complain = True
        self._work(self.mount)

    def _serve_faulty(self) -> None:
        mount = self.mount = Mount(self.folder, NO_TIMER, store=self.store)
        mount.may_complain = True
        with injected(mount.pid, self.injection, self.log, self.store):
            self._work(mount)
            if self.kills and is_dead(os.fsencode(mount.path)) and mount.process is not None:
                mount.process.wait(timeout=60)
        if mount.process is None or mount.process.poll() is not None:
            if not self.kills or not struck(self.log):
                self.outcome.note("dead", f"the daemon ended: {mount.stderr_text()}")
            return
        self._look(mount, excused=False)
        self._go_on(mount)

    def _go_on(self, mount: Mount) -> None:
        """Now that nothing fails any more."""
        self._save_here(mount, b"after", noise("after", 4000))
        if self.passing and not self.ledger.settled(b"after"):
            self.outcome.note("silent", "saving fails though the fault is over")
        self._look(mount, excused=False)

    # -- programs

    def _work(self, mount: Mount) -> None:
        acts: list[Callable[[], None]] = [
            lambda: self._save_here(mount, b"old0", noise("first", 300)),
            lambda: self._program(mount, b"old2", 70_000, 'cp "$FROM" "$TO"'),
            lambda: self._program(mount, b"c", 5000, 'cat "$FROM" >"$TO"'),
            lambda: self._program(mount, b"d", 300_000, 'dd if="$FROM" of="$TO" bs=64k conv=fsync'),
            lambda: self._look(mount, excused=True),
            lambda: self._program(mount, b"big", 2_500_000, 'cp "$FROM" "$TO"'),
            lambda: self._save_here(mount, b"old1", noise("second", 5000)),
            lambda: self._replace(mount, b"t", b"old3", noise("third", 9000)),
            lambda: self._remove(mount, b"old0"),
        ]
        for act in acts:
            act()
        for number in range(_SMALL):
            self._save_here(mount, b"n%d" % number, noise(number, 700))
        self._look(mount, excused=True)

    def _save_here(self, mount: Mount, name: bytes, data: bytes) -> None:
        self.ledger.attempt(name, data)
        call = "open"
        try:
            fd = os.open(mount / os.fsdecode(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            call = "write"
            try:
                assert os.write(fd, data) == len(data)
            except OSError:
                with suppress(OSError):
                    os.close(fd)
                raise
            call = "close"
            os.close(fd)
        except OSError:
            self.ledger.refused(name, cut=call != "open" and not self.kills)
        else:
            self.ledger.done(name)

    def _program(self, mount: Mount, name: bytes, size: int, script: str) -> None:
        """A shell's command that saves `size` bytes, and whose exit code says whether it could."""
        data = noise((name, size, script), size)
        source = self.folder / "source"
        source.write_bytes(data)
        self.ledger.attempt(name, data)
        where = {"FROM": str(source), "TO": str(mount / os.fsdecode(name))}
        words = ["sh", "-c", script]
        try:
            done = subprocess.run(
                words, env=environment(where), capture_output=True, check=False, timeout=_PATIENCE
            )
        except subprocess.TimeoutExpired:
            self.outcome.note("dead", f"{script} hangs")
            mount.kill9()
            raise
        if done.returncode == 0:
            self.ledger.done(name)
        else:
            self.ledger.refused(name, cut=not self.kills)

    def _replace(self, mount: Mount, name: bytes, target: bytes, data: bytes) -> None:
        """Save under another name, rename over the file, sync the directory."""
        self._save_here(mount, name, data)
        self.ledger.attempt(name, None)
        self.ledger.attempt(target, data)
        whole = self.ledger.names[name].acknowledged
        try:
            os.rename(mount / os.fsdecode(name), mount / os.fsdecode(target))
            self._sync_root(mount)
        except OSError:
            # What was renamed may have been saved in part.
            cut = whole != len(self.ledger.names[name].versions) - 2
            self.ledger.refused(name)
            self.ledger.refused(target, cut=cut)
        else:
            self.ledger.done(name)
            self.ledger.done(target)

    def _remove(self, mount: Mount, name: bytes) -> None:
        self.ledger.attempt(name, None)
        try:
            os.unlink(mount / os.fsdecode(name))
            self._sync_root(mount)
        except OSError:
            self.ledger.refused(name)
        else:
            self.ledger.done(name)

    @staticmethod
    def _sync_root(mount: Mount) -> None:
        fd = os.open(mount.path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # -- what is there

    def _look(self, mount: Mount, *, excused: bool) -> None:
        """Read what nobody is in doubt about: the right bytes, or an error while the fault lasts."""
        views: list[tuple[Path, dict[bytes, Version]]] = [
            (mount.path, {n: self.ledger.newest(n) for n in self.ledger.names if self.ledger.settled(n)})
        ]
        for number in (2, len(self.template.commits)):
            wanted: dict[bytes, Version] = {**self.template.commits[number - 1]}
            views.append((mount.commit(number), wanted))
        for root, wanted in views:
            for name, version in wanted.items():
                try:
                    found: Version = (root / os.fsdecode(name)).read_bytes()
                except FileNotFoundError:
                    found = None
                except OSError as error:
                    if not excused:
                        code = errno.errorcode.get(error.errno or 0)
                        self.outcome.note("wrong", f"{root / os.fsdecode(name)} cannot be read: {code}")
                    continue
                if found != version:
                    self.outcome.note("wrong", f"{root / os.fsdecode(name)} has other bytes")

    def _compare(self) -> None:
        """Everything after a clean start: by mounting again, and in the store itself."""
        mount = self.mount
        try:
            if mount is None:
                mount = self.mount = Mount(self.folder, NO_TIMER, store=self.store)
            else:
                self._end(mount)
                mount.prefix = ()
                mount.start()
        except AssertionError as error:
            self.outcome.note("closed", f"cannot be mounted again: {error}")
            return
        try:
            self._find({os.fsencode(path.name): path.read_bytes() for path in mount.path.iterdir()}, "live")
        except OSError as error:
            self.outcome.note("closed", f"the live tree cannot be read: {error}")
        mount.unmount()
        done = commitfs("check", self.store)
        if done.returncode != 0:
            self.outcome.note("closed", f"check says {done.stdout}{done.stderr}")
        try:
            commits = trees(self.store)
        except (CommitfsError, OSError) as error:
            self.outcome.note("closed", f"its history cannot be read: {error}")
            return
        if commits[: len(self.template.commits)] != self.template.commits:
            self.outcome.note("wrong", "history has changed")
        self._find(commits[-1], "newest commit")
        for number, files in enumerate(commits, 1):
            for name, data in files.items():
                if not self.ledger.ever(name, data):
                    self.outcome.note("half", f"{name!r} in commit {number}")

    def _find(self, found: dict[bytes, bytes], where: str) -> None:
        for name in {*found, *self.ledger.names}:
            if kind := self.ledger.verdict(name, found.get(name)):
                self.outcome.note(kind, f"{name!r}, {where}")

    def _end(self, mount: Mount) -> None:
        """Unmount; the daemon may say that its last commit failed, but must end."""
        process = mount.process
        if process is None:
            return
        if process.poll() is not None:
            mount.kill9()
            return
        try:
            mount.unmount()
        except AssertionError as error:
            # Where the fault was there from the start, it may strike as late as this.
            killed = self.kills and f"exited with {-signal.SIGKILL}:" in str(error)
            if mount.process is not None or not (killed or "exited with 1:" in str(error)):
                self.outcome.note("dead", str(error))
                mount.close()
        except subprocess.TimeoutExpired:
            self.outcome.note("dead", "the daemon does not end")
            mount.kill9()
