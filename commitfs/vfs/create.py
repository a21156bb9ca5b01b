"""Making a store: the file and its first commit, an empty root directory, appear together."""

import os
import stat
import time

from commitfs.format.facts import Change, Facts, encode_facts
from commitfs.format.inode import Inode, encode_inode
from commitfs.format.keys import ROOT_INO, inode_key
from commitfs.format.slot import DEFAULT_ALIGN
from commitfs.native import crc32c
from commitfs.store.make import new_file, new_image, write_file
from commitfs.store.store import Store


def first_commit(store: Store, *, mode: int, uid: int, gid: int, now: int | None = None) -> None:
    """Commit an empty root directory to a store that has no commit; durable when it returns."""
    if now is None:
        now = time.time_ns()
    tree = store.tree(None)
    txn = store.begin()
    root = Inode(stat.S_IFDIR | mode, 2, uid, gid, 0, 0, now, now, now, int(txn.id), 0, 0)
    tree.put(inode_key(ROOT_INO), encode_inode(root))
    facts = Facts(now, uid, os.getpid(), b"commitfs", (Change("mkdir", b""),))
    txn.add(encode_facts(facts, crc32c))
    txn.finish(root=tree.build(txn.add), time_ns=now)
    store.flush()


def create_store(
    path: str | os.PathLike[str],
    *,
    mode: int = 0o755,
    uid: int | None = None,
    gid: int | None = None,
    align: int = DEFAULT_ALIGN,
) -> None:
    """Make a store with an empty root directory.  Atomic: after a crash it is there whole or not at all.

    `mode`, `uid` and `gid` are the root directory's, `align` the store's (`Store.create`).
    Raises UsageError when `path` exists (it is never touched) or its directory does not, OSError when
    there is no room or no permission.
    """
    image = new_image(align)
    with new_file(os.fspath(path)) as fresh:
        write_file(fresh, image)
        store = Store.open(fresh, writable=True)
        try:
            first_commit(
                store,
                mode=mode,
                uid=os.getuid() if uid is None else uid,
                gid=os.getgid() if gid is None else gid,
            )
        finally:
            store.close()
