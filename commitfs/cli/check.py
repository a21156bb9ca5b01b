"""``commitfs check``"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from commitfs.store.check import Finding

DAMAGED = 1
COULD_NOT = 2


@click.command()
@click.argument("store")
@click.option("--json", "as_json", is_flag=True, help="Each finding as one JSON object a line.")
def check(store: str, as_json: bool) -> int:
    """Find damage; nothing is changed.

    Every record, tree node and file byte of every commit is read and compared with its checksum.  Exit
    code 0: sound, 1: damage was found (each finding is a line), 2: the store could not be checked.
    """
    from commitfs.cli.output import complain, flush
    from commitfs.errors import CommitfsError, one_line

    try:
        code = _check(store, as_json)
        # What cannot be told was not checked for anybody: not the code of damage.
        flush()
        return code
    except (CommitfsError, OSError) as exc:
        if isinstance(exc, BrokenPipeError):
            raise
        complain(one_line(exc))
        return COULD_NOT


def _check(name: str, as_json: bool) -> int:
    from commitfs.cli.output import Progress, put, put_json
    from commitfs.cli.stores import reading
    from commitfs.store.check import Severity, check_store
    from commitfs.vfs.check import check_trees

    damaged = False
    with reading(name, report=_without_advice) as store:
        commits = 0 if store.head is None else int(store.head.id) - int(store.oldest_id) + 1
        log_progress, tree_progress = Progress("reading the log"), Progress("comparing commits")
        for finding in chain(
            check_store(store, progress=log_progress), check_trees(store, progress=tree_progress)
        ):
            log_progress.clear()
            tree_progress.clear()
            damaged = damaged or finding.severity is Severity.DAMAGE
            if as_json:
                put_json(_fields(finding))
            else:
                put(_line(finding))
        log_progress.clear()
        tree_progress.clear()
    if not as_json:
        put(f"{'damage was found;' if damaged else 'sound:'} {commits} commit{'s' * (commits != 1)} read")
    return DAMAGED if damaged else 0


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
