"""Read the history of one path straight from a store, mounted or not.

    python examples/browse_history.py STORE PATH

Prints a line for each commit in which the contents of PATH differ from those in the commit before:
number, time, size, and which program saved it.
"""

import os
import sys
from datetime import UTC, datetime

from commitfs.errors import FsError
from commitfs.store.store import Store
from commitfs.vfs.history import facts
from commitfs.vfs.snapshot import Snapshot


def contents(snapshot: Snapshot, path: bytes) -> bytes | None:
    """None where the path is missing or no file."""
    try:
        ino = snapshot.resolve(path)
        return snapshot.read(ino, 0, snapshot.attr(ino).size)
    except FsError:
        return None


def main(store_path: str, path: bytes) -> None:
    store = Store.open(store_path)
    try:
        before: bytes | None = None
        for record in reversed(list(store.records())):
            now = contents(Snapshot(store, record), path)
            if now != before:
                when = datetime.fromtimestamp(record.time_ns / 1e9, UTC)
                told = facts(store, record)
                program = os.fsdecode(told.program) if told else "?"
                what = "gone" if now is None else f"{len(now)} bytes"
                print(f"{record.id:08} {when:%Y-%m-%d %H:%M:%S} {what} by {program}")
            before = now
    finally:
        store.close()


if __name__ == "__main__":
    main(sys.argv[1], os.fsencode(sys.argv[2]))
