"""``commitfs ls``"""

from __future__ import annotations

import stat
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from commitfs.vfs.snapshot import Snapshot


@click.command()
@click.argument("store")
@click.argument("commit", metavar="ID")
@click.argument("path", required=False)
@click.option("-l", "--long", "long", is_flag=True, help="Also mode, links, owner, group, size and time.")
def ls(store: str, commit: str, path: str | None, long: bool) -> None:
    """List a directory of a commit.

    Names are sorted by their bytes; of a file its own path is shown.  On a terminal control characters
    and bytes that are no text are escaped; elsewhere names come out as they are, one a line.
    """
    from commitfs.cli.output import put, shown, text_of
    from commitfs.cli.snapshots import snapshot_of
    from commitfs.cli.stores import reading, tree_path

    wanted = tree_path(path or "")
    shape = shown if sys.stdout.isatty() else text_of
    with reading(store) as opened:
        snapshot, ino = snapshot_of(opened, commit, wanted)
        if stat.S_ISDIR(snapshot.attr(ino).mode):
            listed = sorted((name, child) for name, child, _ in snapshot.entries(ino))
        else:
            listed = [(wanted, snapshot.resolve(wanted, follow=False))]
        for name, child in listed:
            line = shape(name)
            if long:
                line = _long(snapshot, child, line)
            put(line)


def _long(snapshot: Snapshot, ino: int, name: str) -> str:
    from commitfs.cli.describe import local
    from commitfs.cli.output import shown

    attr = snapshot.attr(ino)
    mode = stat.filemode(attr.mode)
    if stat.S_ISLNK(attr.mode):
        name += " -> " + shown(snapshot.readlink(ino))
    return f"{mode} {attr.nlink:3} {attr.uid:5} {attr.gid:5} {attr.size:12} {local(attr.mtime_ns)} {name}"
