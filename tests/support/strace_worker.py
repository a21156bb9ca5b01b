"""``python -m tests.support.strace_worker STORE LOAD [TRACE]``: a run on a real file, for strace to watch.

LOAD is ``alone`` (one call at a time) or ``tasks`` (with threads beside, the native one included).  With
TRACE every operation is recorded and the trace pickled there.  Without it the engine has the file as it is.
"""

import pickle
import sys
from pathlib import Path

import trio

from commitfs.store.file import StoreFile, open_file
from tests.support.crash_file import RecordingRealFile, Trace
from tests.support.crash_load import Load
from tests.support.memory_file import MemoryDisk


def main() -> None:
    path, kind, *rest = sys.argv[1:]
    trace = Trace(Path(path).read_bytes())

    def opener(name: object, writable: bool) -> StoreFile:
        file = open_file(str(name), writable)
        return RecordingRealFile(file, trace) if rest else file

    load = Load(Path(path), 5, MemoryDisk(), trace, opener=opener)
    load.commits(40)
    if kind == "tasks":
        inline = False if rest else None
        trio.run(load.concurrently, 4, 5, inline)
        trio.run(load.staged, 2, inline)
    load.reopen()
    load.commits(20)
    load.store.close()
    if rest:
        Path(rest[0]).write_bytes(pickle.dumps((trace.ops, trace.replay())))


if __name__ == "__main__":
    main()
