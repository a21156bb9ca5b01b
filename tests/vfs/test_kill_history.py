"""What tests/support/kill_history.py finds where a store and the writers' journals do not agree."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from commitfs.store.store import Store
from tests.support.kill_history import BYTES, HALF, LOST, History, Ledger, Wrong
from tests.support.kill_writer import entry
from tests.support.world import CTX, open_vfs, save, save_again

ONE, TWO, LONG = b"one", b"two", b"longer"
Changes = Mapping[str, bytes | None]


async def work(path: Path) -> None:
    """a: one, then two; b is made between them, and then removed with a third."""
    async with open_vfs(path) as vfs:
        folder = (await vfs.mkdir(1, b"w0", 0o755, CTX)).ino
        await vfs.settle()
        await save(vfs, b"a", ONE, parent=folder)
        await save(vfs, b"b", ONE, parent=folder)
        await save_again(vfs, folder, b"a", TWO)
        await vfs.unlink(folder, b"b", CTX)
        await save(vfs, b"c", LONG, parent=folder)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    trio.run(work, tmp_path / "s.db")
    return Store.open(tmp_path / "s.db")


GOOD: list[tuple[bool, bool, Changes]] = [
    (True, True, {"a": ONE}),
    (True, True, {"b": ONE}),
    (True, True, {"a": TWO}),
    (False, True, {"b": None}),
    (True, True, {"c": LONG}),
]


def compare(store: Store, steps: list[tuple[bool, bool, Changes]]) -> History:
    """With the journal of `steps`: durable, returned, changes."""
    journal = Path(store.path).with_name("journal")
    with journal.open("w") as file:
        for number, (durable, returned, changes) in enumerate(steps, 1):
            noted = {name: data and entry(data) for name, data in changes.items()}
            file.write(json.dumps([number, durable, noted]) + "\n")
            if returned:
                file.write(json.dumps([number]) + "\n")
    history = History([Ledger("w0", journal)])
    history.ledgers[0].read()
    try:
        history.go_on(store)
        history.settle_accounts()
    finally:
        store.close()
    return history


def test_all_is_well(store: Store) -> None:
    history = compare(store, GOOD)
    assert history.compared == 6
    assert history.at == [5]
    assert history.ledgers[0].returned == 4


@pytest.mark.parametrize("durable", [True, False])
def test_the_last_step_never_happened(store: Store, durable: bool) -> None:
    history = compare(store, [*GOOD, (durable, False, {"a": LONG})])
    assert len(history.ledgers[0].steps) == 6, "it is dropped"


def test_the_last_step_happened_without_an_answer(store: Store) -> None:
    compare(store, [*GOOD[:-1], (True, False, {"c": LONG})])


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (LOST, [*GOOD, (True, True, {"a": LONG})]),
        (LOST, [*GOOD[:3], (True, True, {"b": None}), GOOD[4]]),
        (LOST, [GOOD[0], GOOD[1], (True, True, {"d": ONE}), (True, True, {"d": None}), *GOOD[2:]]),
        (HALF, [GOOD[0], GOOD[1], (True, True, {"a": TWO, "b": None}), GOOD[4]]),
        (HALF, [*GOOD[:-1], (True, True, {"c": LONG * 2})]),
        (HALF, [*GOOD[:-1]]),
        (BYTES, [*GOOD[:-1], (True, True, {"c": LONG[::-1]})]),
    ],
)
def test_what_does_not_agree(store: Store, kind: str, steps: list[tuple[bool, bool, Changes]]) -> None:
    with pytest.raises(Wrong) as caught:
        compare(store, steps)
    assert caught.value.kind == kind


async def test_a_folder_that_goes_back(tmp_path: Path) -> None:
    """Each commit holds something known, but not in order."""

    async with open_vfs(tmp_path / "s.db") as vfs:
        folder = (await vfs.mkdir(1, b"w0", 0o755, CTX)).ino
        for data in (ONE, TWO, ONE):
            await save_again(vfs, folder, b"a", data)
    with pytest.raises(Wrong) as caught:
        compare(Store.open(tmp_path / "s.db"), [(True, True, {"a": ONE}), (True, True, {"a": TWO})])
    assert caught.value.kind == LOST
