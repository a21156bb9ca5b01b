"""A commit as ``log`` and ``show`` tell it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from commitfs.cli.output import printable, shown, size_text, text_of

if TYPE_CHECKING:
    from commitfs.format.facts import Change, Facts
    from commitfs.format.record import Record
    from commitfs.store.store import Store


def iso(time_ns: int) -> str:
    """UTC, with all nine digits: 2026-11-30T14:00:00.123456789Z."""
    seconds, ns = divmod(time_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{ns:09d}Z"


def local(time_ns: int) -> str:
    """The user's own time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // 1_000_000_000))


def facts_of(store: Store, record: Record) -> tuple[Facts | None, str]:
    """Facts of a commit, None where it has none, and what is wrong with them ("": nothing)."""
    from commitfs.errors import CorruptError
    from commitfs.vfs.history import facts

    try:
        return facts(store, record), ""
    except CorruptError as exc:
        # The commit itself may be whole: say so here and go on.
        return None, str(exc)


def fields(store: Store, record: Record) -> dict[str, object]:
    """The JSON object of a commit (docs/cli.md)."""
    from commitfs.format.record import RECORD_SIZE
    from commitfs.vfs.names import BRANCH

    made, damage = facts_of(store, record)
    out: dict[str, object] = {
        "id": int(record.id),
        "time": iso(record.time_ns),
        "time_ns": record.time_ns,
        "parent": int(record.parent_id) or None,
        "branch": BRANCH if record.branch == 0 else str(record.branch),
        "offset": int(record.offset),
        "bytes": RECORD_SIZE + record.length,
        "changes": [] if made is None else [change_fields(change) for change in made.changes],
        "changes_complete": made is not None and not made.truncated,
        "uid": None if made is None else made.uid,
        "pid": None if made is None else made.pid,
        "program": None if made is None else text_of(made.program),
    }
    if damage:
        out["damage"] = damage
    return out


def change_fields(change: Change) -> dict[str, object]:
    out: dict[str, object] = {"op": change.op, "path": text_of(change.path), "size": change.size}
    if change.source:
        out["source"] = text_of(change.source)
    return out


def change_text(change: Change) -> str:
    text = f"{change.op} {shown(change.path) or '/'}"
    if change.source:
        text += f" from {shown(change.source)}"
    if change.size is not None:
        text += f" ({size_text(change.size)})"
    return text


def program_text(made: Facts) -> str:
    return f"{printable(text_of(made.program)) or '?'}[{made.pid}] uid {made.uid}"
