"""P8: one process writes, many read; two that want to write; a copy of a store that is being written."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from commitfs.store.check import check_store
from commitfs.store.store import Store
from commitfs.vfs.check import check_trees
from commitfs.vfs.snapshot import Snapshot
from tests.mounted.conftest import Mounts
from tests.support.counting import Counting, contents, number_of
from tests.support.mounted import PROGRAM, Mount, commitfs, environment
from tests.torture.readers import PATIENCE, torture

pytestmark = pytest.mark.mounted


def test_p8_readers_beside_writers_that_are_killed(tmp_path: Path) -> None:
    readers, saves = torture(tmp_path, rounds=3, saves=150)
    assert readers.wrong == []
    assert saves >= 3 * 20
    assert len(readers.looks) == 5
    assert min(readers.looks.values()) >= 3


def newest(path: Path) -> tuple[int, int]:
    """Id and checksum of the newest commit."""
    with closing(Store.open(path)) as store:
        assert store.head is not None
        return store.head.id, store.head.crc


@pytest.mark.parametrize("there", [True, False])
def test_case_38_two_writers_started_at_once(tmp_path: Path, there: bool) -> None:
    """Exactly one has the store; the other leaves it alone and tells who does."""
    path = tmp_path / "s.db"
    points = [tmp_path / "one", tmp_path / "two"]
    for point in points:
        point.mkdir()
    for number in range(4 if there else 2):
        if there and number == 0:
            assert commitfs("mount", path, points[0]).returncode == 0
            (points[0] / "f").write_text("f")
            assert commitfs("umount", points[0]).returncode == 0
        elif not there:
            path.unlink(missing_ok=True)
        before = newest(path) if there else None
        command = [sys.executable, *PROGRAM, "mount", str(path)]
        started = [
            subprocess.Popen([*command, str(point)], env=environment(), stderr=subprocess.PIPE, text=True)
            for point in points
        ]
        said = [process.communicate(timeout=PATIENCE)[1] for process in started]
        codes = [process.returncode for process in started]
        mounted = [point for point in points if os.path.ismount(point)]
        try:
            assert sorted(map(bool, codes)) == [False, True], said
            winner, loser = codes.index(0), 1 - codes.index(0)
            assert mounted == [points[winner]]
            assert said[loser].startswith("commitfs: ")
            assert said[loser].count("\n") == 1
            if there:
                owner = int(next(word for word in said[loser].split() if word.isdigit()))
                assert str(path) in Path(f"/proc/{owner}/cmdline").read_text().split("\0")
                assert newest(path) == before
            (mounted[0] / "g").write_text(str(number))
            assert (mounted[0] / ".commits/latest/g").read_text() == str(number)
        finally:
            for point in mounted:
                assert commitfs("umount", point).returncode == 0
        done = commitfs("check", path)
        assert (done.returncode, done.stderr) == (0, "")


def chunks(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new, 8192)


def program(*command: str) -> Callable[[Path, Path], None]:
    def copy(source: Path, target: Path) -> None:
        subprocess.run([*command, source, target], check=True)

    return copy


def cat(source: Path, target: Path) -> None:
    with target.open("wb") as new:
        subprocess.run(["cat", source], stdout=new, check=True)


COPIES = [
    program("cp"),
    program("cp", "--reflink=auto", "--sparse=always"),
    cat,
    chunks,
]


def test_a_copy_of_a_mounted_store(mounts: Mounts, tmp_path: Path) -> None:
    """It opens, with all that had returned before it began; what it lacks is behind that."""
    fs: Mount = mounts()
    returned = tmp_path / "returned"
    target = tmp_path / "copy"
    with closing(Counting(fs.path, returned)) as counting:
        for copy in COPIES * 3:
            counting.until(counting.counter.value + 30, PATIENCE)
            saved, there = counting.counter.value, newest(fs.store)[0]
            copy(fs.store, target)
            counting.process.send_signal(signal.SIGSTOP)  # the store need not grow while the copy is read
            with closing(Store.open(target)) as store:
                snapshot = Snapshot(store, store.head)
                assert number_of(snapshot.read(snapshot.resolve(b"n"), 0, 1 << 20)) >= saved
                assert [record.id for record in store.records()] == list(range(store.durable_id, 0, -1))
                found = [*check_store(store), *check_trees(store)]
                assert [finding for finding in found if finding.commit <= there] == []
            counting.process.send_signal(signal.SIGCONT)
    fs.check()


def test_a_copy_that_caught_the_end_half_written(mounts: Mounts, tmp_path: Path) -> None:
    """What copying programs can meet: one read came before a commit was written, the next one behind it."""
    fs: Mount = mounts()
    for number in range(20):
        (fs / "f").write_bytes(contents(number))
    before = newest(fs.store)[0]
    with closing(Store.open(fs.store)) as store:
        end = store.published_end
    old = fs.store.read_bytes()[: end + 2000]
    for number in range(20, 30):
        (fs / "f").write_bytes(contents(number))
    target = tmp_path / "copy"
    target.write_bytes(old + fs.store.read_bytes()[len(old) :])
    assert newest(target)[0] == before + 10
    assert commitfs("cat", target, "latest", "f").stdout.encode() == contents(29)
    assert commitfs("cat", target, str(before), "f").stdout.encode() == contents(19)
    done = commitfs("check", target)
    assert done.returncode == 1
    assert f"commit {before + 1} is lost" in done.stdout
    done = commitfs("salvage", target, tmp_path / "salvaged")
    assert done.returncode == 1
    assert commitfs("cat", tmp_path / "salvaged", "latest", "f").stdout.encode() == contents(29)
    assert commitfs("check", tmp_path / "salvaged").returncode == 0
    (tmp_path / "m").mkdir()
    whole = target.read_bytes()
    done = commitfs("mount", target, tmp_path / "m")
    commitfs("umount", tmp_path / "m")
    assert target.read_bytes() == whole, "commits further on are whole: nobody cuts them off"
