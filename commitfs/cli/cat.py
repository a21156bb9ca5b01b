"""``commitfs cat``"""

import stat

import click

CHUNK = 1 << 20


@click.command()
@click.argument("store")
@click.argument("commit", metavar="ID")
@click.argument("path")
def cat(store: str, commit: str, path: str) -> None:
    """Write a file's bytes as of a commit."""
    from commitfs.cli.output import shown, write
    from commitfs.cli.snapshots import snapshot_of
    from commitfs.cli.stores import reading, tree_path
    from commitfs.errors import UsageError

    wanted = tree_path(path)
    with reading(store) as opened:
        snapshot, ino = snapshot_of(opened, commit, wanted)
        attr = snapshot.attr(ino)
        if not stat.S_ISREG(attr.mode):
            kind = "a directory" if stat.S_ISDIR(attr.mode) else "no regular file"
            raise UsageError(f"{shown(wanted) or '/'} is {kind}")
        for offset in range(0, attr.size, CHUNK):
            write(snapshot.read(ino, offset, CHUNK))
