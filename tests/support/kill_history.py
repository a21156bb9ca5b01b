"""What the writers of tests/support/kill_writer.py were told, beside what a store's commits hold.

Steps of one writer are in order, and so is history: as commits go by, its folder goes through the states
its steps brought about, one after the other.  A step may be passed over (two of them in one commit), but
not one that was durable when its call returned: that is a commit of its own (P1).  The folder may be in
no other state, ever (P2, P3, P6).
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from commitfs.errors import CorruptError
from commitfs.format.keys import DENTRY, ROOT_INO, split_key
from commitfs.format.node import NO_ROOT
from commitfs.format.record import Record
from commitfs.store.store import Store
from commitfs.store.tree import diff
from commitfs.vfs.snapshot import Snapshot
from tests.support.kill_writer import State, entry

LOST, HALF, BYTES, OPEN = "lost", "half there", "wrong bytes", "failed to open"
KINDS = (LOST, HALF, BYTES, OPEN)


class Wrong(Exception):
    """A promise was broken; `kind` is how."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


@dataclass(slots=True)
class Step:
    number: int
    state: State
    """Of the folder when this step was done."""
    durable: bool
    """It returned, and what returned is durable."""


@dataclass(slots=True)
class Ledger:
    """Steps of one writer that happened, or may have, in order."""

    folder: str
    journal: Path
    steps: list[Step] = field(default_factory=lambda: [Step(0, {}, False)])
    returned: int = 0
    """Durable steps that returned, those of all rounds."""
    _read: int = 0

    def read(self) -> None:
        """Take in what the journal has gained."""
        with self.journal.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        durable = False
        for line in text.splitlines():
            number, *rest = json.loads(line)
            if rest:
                durable, changes = rest
                state = dict(self.steps[-1].state)
                for name, found in changes.items():
                    if found is None:
                        state.pop(name, None)
                    else:
                        state[name] = found[0], found[1]
                self.steps.append(Step(number, state, False))
            else:
                assert self.steps[-1].number == number
                self.steps[-1].durable = durable
                self.returned += durable

    def known(self, name: str) -> set[tuple[int, str]]:
        """All contents a file ever was to have."""
        return {step.state[name] for step in self.steps if name in step.state}


class History:
    """A walk along the commits of one store, oldest first, beside the ledgers."""

    def __init__(self, ledgers: list[Ledger]) -> None:
        self.ledgers = ledgers
        self.at = [0] * len(ledgers)
        """Index of the step each writer's folder is at in the last commit compared."""
        self.last: Record | None = None
        self._folders: dict[str, int] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._entries: dict[int, tuple[int, str]] = {}

    @property
    def compared(self) -> int:
        """Number of commits compared."""
        return self.last.id if self.last is not None else 0

    def go_on(self, store: Store) -> None:
        """Compare all commits behind the last one compared.  Raises Wrong."""
        new = []
        for record in store.records():
            if self.last is not None and record.id <= self.last.id:
                break
            new.append(record)
        ids = [record.id for record in reversed(new)]
        if ids != list(range(self.compared + 1, self.compared + 1 + len(ids))):
            raise Wrong(LOST, f"ids are not dense behind {self.compared}: {ids[:5]} … {ids[-5:]}")
        for record in reversed(new):
            try:
                self._compare(store, record)
            except CorruptError as exc:
                raise Wrong(BYTES, f"commit {record.id}: {exc}") from exc

    def settle_accounts(self) -> None:
        """After a crash the store went on from the last commit compared: whatever was durable is in it, and
        steps behind it never happened.  Raises Wrong."""
        for index, ledger in enumerate(self.ledgers):
            at = self.at[index]
            here = ledger.steps[at].state
            for step in ledger.steps[at + 1 :]:
                if step.durable and step.state != here:
                    raise Wrong(LOST, f"{ledger.folder}, step {step.number}, which had returned")
            del ledger.steps[at + 1 :]

    def _compare(self, store: Store, record: Record) -> None:
        snapshot = Snapshot(store, record)
        before = self.last.root if self.last is not None else NO_ROOT
        files: set[int] = set()
        listed: set[int] = set()
        for key, _, _ in diff(store.nodes, before, record.root):
            ino, kind, _ = split_key(key)
            (listed if kind == DENTRY else files).add(ino)
        if ROOT_INO in listed:
            self._folders = {name.decode(): ino for name, ino, _ in snapshot.entries(ROOT_INO)}
        for ino in files & self._entries.keys():
            del self._entries[ino]
        for index, ledger in enumerate(self.ledgers):
            folder = self._folders.get(ledger.folder)
            if folder is None:
                continue
            if folder in listed:
                self._names[folder] = {name.decode(): ino for name, ino, _ in snapshot.entries(folder)}
            names = self._names.setdefault(folder, {})
            if folder in listed or files & set(names.values()):
                found = {name: self._entry(snapshot, ino) for name, ino in names.items()}
                self._advance(index, found, record.id)
        self.last = record

    def _entry(self, snapshot: Snapshot, ino: int) -> tuple[int, str]:
        if ino not in self._entries:
            self._entries[ino] = entry(snapshot.read(ino, 0, snapshot.inode(ino).size))
        return self._entries[ino]

    def _advance(self, index: int, found: State, commit: int) -> None:
        ledger = self.ledgers[index]
        steps, at = ledger.steps, self.at[index]
        here = steps[at].state
        then = next((n for n in range(at, len(steps)) if steps[n].state == found), None)
        if then is None:
            raise self._why(ledger, found, commit)
        for step in steps[at + 1 : then]:
            if step.durable and step.state != here:
                raise Wrong(LOST, f"{ledger.folder}, step {step.number} returned but is no commit ({commit})")
        self.at[index] = then

    def _why(self, ledger: Ledger, found: State, commit: int) -> Wrong:
        where = f"commit {commit}, {ledger.folder}"
        for name, contents in found.items():
            known = ledger.known(name)
            if contents not in known:
                sizes = {size for size, _ in known}
                return Wrong(BYTES if contents[0] in sizes else HALF, f"{where}/{name}: {contents}")
        if any(step.state == found for step in ledger.steps):
            return Wrong(LOST, f"{where} is as it was before an earlier commit")
        return Wrong(HALF, f"{where} is as it never was: {found}")
