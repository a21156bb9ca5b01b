"""``commitfs salvage``"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from commitfs.vfs.salvage import Loss, Salvaged

SOMETHING_LOST = 1
COULD_NOT = 2


@click.command()
@click.argument("store")
@click.argument("new")
@click.option("--json", "as_json", is_flag=True, help="Each loss as one JSON object a line, and a summary.")
def salvage(store: str, new: str, as_json: bool) -> int:
    """Copy every commit that can be read into a new store.

    STORE is not changed, and may be one that cannot be opened any more.  NEW must not exist; it appears
    when all is durable.  Commits keep their ids.  What could not be read is listed.  Exit code 0: nothing was
    lost, 1: something was, 2: NEW was not made.
    """
    from commitfs.cli.output import code_of

    return code_of(lambda: _salvage(store, new, as_json), COULD_NOT)


def _salvage(name: str, new: str, as_json: bool) -> int:
    import os
    from contextlib import closing

    from commitfs.cli.check import tell_damage
    from commitfs.cli.output import Progress, put, put_json
    from commitfs.cli.stores import given, store_path
    from commitfs.errors import UsageError
    from commitfs.store.salvage import open_damaged
    from commitfs.store.store import Store
    from commitfs.vfs.salvage import salvage as copy

    path = os.fsdecode(given(new, "NEW"))
    if os.path.lexists(path):
        raise UsageError(f"{path} exists already")
    progress = Progress("salvaging")
    lost = False

    def tell(loss: Loss) -> None:
        nonlocal lost
        lost = True
        progress.clear()
        if as_json:
            put_json(_fields(loss))
        else:
            put(_line(loss))

    source = open_damaged(os.fsdecode(store_path(given(name, "STORE"))))
    try:
        done = copy(source, path, lost=tell, progress=progress)
    finally:
        progress.clear()
        source.close()
    # What was wrong although its checksums fit was copied as it was: whoever trusts NEW has to hear of it.
    with closing(Store.open(path)) as made:
        unsound = tell_damage(made, [], as_json)
    if as_json:
        put_json({"summary": {**done._asdict(), "sound": not unsound}})
    else:
        put(_told(path, done) + "; it is not sound" * bool(unsound))
    return SOMETHING_LOST if lost or unsound else 0


def _fields(loss: Loss) -> dict[str, object]:
    from commitfs.cli.output import text_of

    return {"commit": loss.commit, "path": text_of(loss.path) or None, "message": loss.message}


def _line(loss: Loss) -> str:
    from commitfs.cli.output import printable, shown
    from commitfs.vfs.names import id_name

    where = f", {shown(loss.path)}" if loss.path else ""
    return f"lost, commit {id_name(loss.commit)}{where}: {printable(loss.message)}"


def _told(path: str, done: Salvaged) -> str:
    from commitfs.cli.output import printable

    text = f"{printable(path)}: {done.whole} commit{'s' * (done.whole != 1)} copied whole"
    if done.in_part:
        text += f", {done.in_part} in part"
    if done.lost:
        text += f", {done.lost} lost"
    return text
