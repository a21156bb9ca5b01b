"""``commitfs log``"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from commitfs.format.record import Record
    from commitfs.store.store import Store


@click.command()
@click.argument("store")
@click.argument("path", required=False)
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help="At most N commits.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def log(store: str, path: str | None, count: int | None, as_json: bool) -> None:
    """List commits, newest first.

    With PATH those that changed it: of a file or symlink its versions, its removal and what put it
    there; of a directory also changes of what is below it.
    """
    from commitfs.cli.describe import fields
    from commitfs.cli.output import put, put_json, shown
    from commitfs.cli.stores import reading, tree_path
    from commitfs.errors import NotFoundError
    from commitfs.vfs.versions import changes_of

    wanted = b"" if path is None else tree_path(path)
    with reading(store) as opened:
        commits = changes_of(opened, wanted) if wanted else opened.records()
        found = count == 0
        for record in islice(commits, count):
            found = True
            if as_json:
                put_json(fields(opened, record))
            else:
                put(_line(opened, record))
    if wanted and not found:
        raise NotFoundError(f"{shown(wanted)} is in no commit")


def _line(store: Store, record: Record) -> str:
    from commitfs.cli.describe import change_text, facts_of, local, program_text
    from commitfs.vfs.names import id_name

    made, damage = facts_of(store, record)
    start = f"{id_name(int(record.id))}  {local(record.time_ns)}"
    if made is None:
        return f"{start}  {damage}".rstrip()
    text = change_text(made.changes[0]) if made.changes else "nothing"
    more = len(made.changes) - 1
    if made.truncated:
        text += f" and more than {more} others"
    elif more > 0:
        text += f" and {more} other{'s' if more > 1 else ''}"
    return f"{start}  {text}  {program_text(made)}"
