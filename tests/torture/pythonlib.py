"""Copy a whole Python installation's library tree into a new mount, and compare it in every view.

    python -m tests.torture.pythonlib [SOURCE]

SOURCE is the library of this interpreter unless given: 50,000 files of 800 MB take about five minutes and
1 GB below $TMPDIR.  SIGTERM and SIGINT end it and leave nothing behind.

Compared are bytes (``diff -r``) and modes, owners, times, links and xattrs: live, in the newest commit,
after a remount, after kill -9 of the daemon.  Prints the counts; exits 1 at the first difference.
"""

import os
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.mounted import Mount, commitfs
from tests.support.trees import Entry, differences, tree


def read(source: Path) -> tuple[dict[str, Entry], int, int]:
    """The tree, the number of its files (a hard link is one with its first name) and their bytes.

    Links to names outside the tree are not counted: a copy has none of those.
    """
    entries = tree(source)
    found = {path: os.lstat(source / path) for path in entries}
    names = Counter(status.st_ino for status in found.values())
    for path, entry in entries.items():
        if entry.nlink:
            entries[path] = entry._replace(nlink=names[found[path].st_ino])
    sizes = {status.st_ino: status.st_size for status in found.values() if stat.S_ISREG(status.st_mode)}
    return entries, len(sizes), sum(sizes.values())


def compare(mount: Mount, view: str, root: Path, source: Path, wanted: dict[str, Entry]) -> None:
    done = subprocess.run(["diff", "-r", "--no-dereference", source, root / "library"], check=False)
    lines = differences(tree(root / "library"), wanted)
    print(f"{view}: diff -r {'clean' if done.returncode == 0 else 'DIFFERS'}, metadata {lines or 'equal'}")
    if done.returncode != 0 or lines:
        mount.close()
        sys.exit(1)


def main(source: Path) -> None:
    wanted, files, size = read(source)
    print(f"{source}: {files} files, {len(wanted)} entries, {size / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory(prefix="commitfs-pythonlib-") as folder:
        mount = Mount(Path(folder), watchdog=3600)
        try:
            torture(mount, source, files, wanted)
        finally:
            mount.close()
        print("the daemon's complaints:", mount.trouble() or "none")


def torture(mount: Mount, source: Path, files: int, wanted: dict[str, Entry]) -> None:
    before, started = mount.n(), time.monotonic()
    subprocess.run(["cp", "-a", source, mount / "library"], check=True)
    seconds = time.monotonic() - started
    commits = mount.n() - before
    print(f"cp -a: {seconds:.1f} s, {commits} commits = {files} files + {commits - files} that settled")
    store, memory = mount.store.stat().st_size / 1e6, mount.peak_memory() / 1e6
    print(f"store: {store:.1f} MB, the daemon's peak memory {memory:.1f} MB")
    for view, root in mount.views():
        compare(mount, view, root, source, wanted)
    mount.kill9()
    mount.start()
    compare(mount, "live after kill -9", mount.path, source, wanted)
    compare(mount, "newest commit after kill -9", mount.newest(), source, wanted)
    done = commitfs("check", mount.store, timeout=600)
    print(f"check: exit {done.returncode} {done.stdout.strip()}{done.stderr.strip()}")
    if done.returncode != 0:
        sys.exit(1)


if __name__ == "__main__":
    # As an exception, so that the mount and its folder go as they do at the end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    main(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("stdlib")))
