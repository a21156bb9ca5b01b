"""``commitfs stats``"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from commitfs.store.store import Store


@click.command()
@click.argument("store")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def stats(store: str, as_json: bool) -> None:
    """Count commits, files and bytes."""
    from commitfs.cli.output import put, put_json, size_text
    from commitfs.cli.stores import reading

    with reading(store) as opened:
        figures = collect(opened)
    if as_json:
        put_json(figures)
        return
    for name, value in figures.items():
        shown = size_text(value) if name in _BYTES else str(value)
        put(f"{name.replace('_', ' '):16} {shown}")


_BYTES = frozenset(("published_end", "file_bytes", "live_bytes", "live_data", "live_metadata"))


def collect(store: Store) -> dict[str, int]:
    """The figures of docs/cli.md, in its order."""
    from commitfs.format.extent import decode_extent
    from commitfs.format.inode import Blob, decode_inode, decode_xattr
    from commitfs.format.keys import EXTENT, INODE, XATTR, split_key
    from commitfs.format.record import RECORD_SIZE

    newest = 0 if store.head is None else int(store.head.id)
    files = directories = others = data = 0
    metadata = RECORD_SIZE if newest else 0
    root = store.tree(store.head).root
    todo = [root] if root.length else []
    while todo:
        node = todo.pop()
        metadata += node.length
        if node.level:
            todo.extend(child for _, child in store.nodes.children(node))
            continue
        for key, value in store.nodes.entries(node):
            kind = split_key(key)[1]
            blob: object = None
            if kind == EXTENT:
                data += decode_extent(value).length
            elif kind == XATTR:
                blob = decode_xattr(value)
            elif kind == INODE:
                inode = decode_inode(value)
                blob = inode.target
                files += stat.S_ISREG(inode.mode)
                directories += stat.S_ISDIR(inode.mode)
                others += not (stat.S_ISREG(inode.mode) or stat.S_ISDIR(inode.mode))
            if isinstance(blob, Blob):
                data += blob.length
    return {
        "commits": newest - int(store.oldest_id) + 1 if newest else 0,
        "oldest": int(store.oldest_id) if newest else 0,
        "newest": newest,
        "published_end": store.published_end,
        "file_bytes": store.file_bytes,
        "live_bytes": data + metadata,
        "live_data": data,
        "live_metadata": metadata,
        "files": files,
        "directories": directories,
        "others": others,
    }
