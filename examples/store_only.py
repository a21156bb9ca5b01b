"""The store without a filesystem: a dictionary that never forgets.

    python examples/store_only.py STORE

Each `set` is one durable commit of a copy-on-write tree; any commit can be read again by its number.
Such a store is no filesystem: there is no root directory in it.  `commitfs log` lists its commits, but
`mount` refuses it and `check` misses the root.
"""

import sys
import time

from commitfs.store.store import Store


def set_value(store: Store, key: bytes, value: bytes) -> int:
    """Durable when it returns; returns the number of the commit."""
    tree = store.tree(store.head)
    tree.put(key, value)
    txn = store.begin()
    txn.finish(root=tree.build(txn.add), time_ns=time.time_ns())
    store.flush()
    return int(txn.id)


def get_value(store: Store, key: bytes, commit: int) -> bytes | None:
    return store.tree(store.record(commit)).get(key)


def main(path: str) -> None:
    Store.create(path)
    store = Store.open(path, writable=True)
    try:
        commits = [set_value(store, b"colour", colour) for colour in (b"red", b"green", b"blue")]
    finally:
        store.close()

    store = Store.open(path)
    try:
        for commit in commits:
            print(commit, get_value(store, b"colour", commit))
    finally:
        store.close()


if __name__ == "__main__":
    main(sys.argv[1])
