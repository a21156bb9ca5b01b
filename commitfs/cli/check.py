"""``commitfs check``"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from commitfs.store.check import Finding
    from commitfs.store.store import Store
    from commitfs.vfs.damage import Damaged

DAMAGED = 1
COULD_NOT = 2
SHOWN = 10
"""Paths named of each run of commits in the summary for people."""


@click.command()
@click.argument("store")
@click.option(
    "--json", "as_json", is_flag=True, help="Each finding as one JSON object a line, and a summary."
)
def check(store: str, as_json: bool) -> int:
    """Find damage; nothing is changed.

    Every record, tree node and file byte of every commit is read and compared with its checksum.  Each
    finding is a line; then follows which commits are sound, and which paths in the others are damaged.
    Exit code 0: sound, 1: damage was found, 2: the store could not be checked.
    """
    from commitfs.cli.output import code_of

    return code_of(lambda: _check(store, as_json), COULD_NOT)


def _check(name: str, as_json: bool) -> int:
    from commitfs.cli.output import put, put_json
    from commitfs.vfs.damage import damaged_commits

    with ExitStack() as stack:
        store, refused = _opened(name, stack)
        found = tell_damage(store, refused, as_json)
        concerned = list(damaged_commits(store, found)) if found else []
        oldest, newest = _bounds(store, concerned)
    if as_json:
        put_json({"summary": _summary(bool(found), oldest, newest, concerned)})
    else:
        for line in _told(name, bool(found), oldest, newest, concerned):
            put(line)
    return DAMAGED if found else 0


def tell_damage(store: Store, refused: list[Finding], as_json: bool) -> list[Finding]:
    """Print all that is found in a store, behind what is `refused` already; what of it is damage."""
    from commitfs.cli.output import Progress, put, put_json
    from commitfs.store.check import Severity, check_store
    from commitfs.vfs.check import check_trees

    found: list[Finding] = []
    log_progress, tree_progress = Progress("reading the log"), Progress("comparing commits")
    for finding in chain(
        refused, check_store(store, progress=log_progress), check_trees(store, progress=tree_progress)
    ):
        log_progress.clear()
        tree_progress.clear()
        if finding.severity is Severity.DAMAGE:
            found.append(finding)
        if as_json:
            put_json(_fields(finding))
        else:
            put(_line(finding))
    log_progress.clear()
    tree_progress.clear()
    return found


def _opened(name: str, stack: ExitStack) -> tuple[Store, list[Finding]]:
    """The store, opened in whatever way it can be and closed by `stack`, and why not in the ordinary way."""
    import os

    from commitfs.cli.stores import given, reading, store_path
    from commitfs.errors import CorruptError, FormatError
    from commitfs.store.check import Finding, Severity
    from commitfs.store.salvage import open_damaged

    try:
        return stack.enter_context(reading(name, report=_without_advice)), []
    except (CorruptError, FormatError) as error:
        why = error
    try:
        store = open_damaged(os.fsdecode(store_path(given(name, "STORE"))))
    except FormatError:
        raise why from None
    stack.callback(store.close)
    return store, [Finding(Severity.DAMAGE, 0, -1, b"", str(why))]


def _without_advice(line: str) -> None:
    """What opening the store tells, to those who are doing already what it advises."""
    from commitfs.cli.output import complain

    complain(line.removesuffix(": run commitfs check"))


def _fields(finding: Finding) -> dict[str, object]:
    from commitfs.cli.output import text_of

    return {
        "severity": finding.severity.value,
        "commit": finding.commit or None,
        "offset": finding.offset if finding.offset >= 0 else None,
        "path": text_of(finding.path) or None,
        "message": finding.message,
    }


def _line(finding: Finding) -> str:
    from commitfs.cli.output import printable, shown
    from commitfs.vfs.names import id_name

    parts = [finding.severity.value]
    if finding.commit:
        parts.append(f"commit {id_name(finding.commit)}")
    if finding.offset >= 0:
        parts.append(f"offset {finding.offset}")
    if finding.path:
        parts.append(shown(finding.path))
    return f"{', '.join(parts)}: {printable(finding.message)}"


# -- the summary ---------------------------------------------------------------------------------


def _bounds(store: Store, concerned: list[Damaged]) -> tuple[int, int]:
    """Ids of the oldest and the newest commit there is known to have been; 0, 0: none."""
    oldest = int(store.oldest_id)
    newest = 0 if store.head is None else int(store.head.id)
    if concerned:
        oldest = min(oldest or concerned[0].first, concerned[0].first)
        newest = max(newest, concerned[-1].last)
    return (oldest, newest) if newest else (0, 0)


def _sound(oldest: int, newest: int, concerned: list[Damaged]) -> list[tuple[int, int]]:
    """(first, last) of the commits in a row that damage does not concern."""
    ranges = []
    at = oldest
    for run in concerned:
        if run.first > at:
            ranges.append((at, run.first - 1))
        at = run.last + 1
    if 0 < at <= newest:
        ranges.append((at, newest))
    return ranges


def _summary(damage: bool, oldest: int, newest: int, concerned: list[Damaged]) -> dict[str, object]:
    from commitfs.cli.output import text_of

    return {
        "damage": damage,
        "commits": newest - oldest + 1 if newest else 0,
        "oldest": oldest,
        "newest": newest,
        "sound": [{"first": first, "last": last} for first, last in _sound(oldest, newest, concerned)],
        "damaged": [
            {
                "first": run.first,
                "last": run.last,
                "lost": run.lost,
                "paths": [text_of(path) for path in run.paths],
            }
            for run in concerned
        ],
    }


def _told(name: str, damage: bool, oldest: int, newest: int, concerned: list[Damaged]) -> Iterator[str]:
    from commitfs.cli.output import printable, shown

    count = newest - oldest + 1 if newest else 0
    if not damage:
        yield f"sound: {count} commit{'s' * (count != 1)} read"
        return
    yield f"damage was found; {count} commit{'s' * (count != 1)} read"
    for run in concerned:
        who = _ids(run.first, run.last)
        if run.lost:
            yield f"{who}: lost"
        elif not run.paths:
            yield f"{who}: what was recorded about {'it' if run.first == run.last else 'them'} is damaged"
        for path in run.paths[:SHOWN]:
            yield f"{who}: {shown(path) or '/'} damaged"
        if len(run.paths) > SHOWN:
            yield f"{who}: {len(run.paths) - SHOWN} more paths damaged; --json has them all"
    sound = _sound(oldest, newest, concerned)
    if sound:
        one = len(sound) == 1 and sound[0][0] == sound[0][1]
        ranges = [f"{first} to {last}" if last > first else str(first) for first, last in sound]
        listed = " and ".join([", ".join(ranges[:-1]), ranges[-1]] if len(ranges) > 1 else ranges)
        yield f"commit {listed} is sound" if one else f"commits {listed} are sound"
    yield f"to copy all that can be read into a new store: commitfs salvage {printable(name)} NEW"


def _ids(first: int, last: int) -> str:
    return f"commit {first}" if first == last else f"commits {first} to {last}"
