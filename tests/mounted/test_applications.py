"""Cases 7, 27 to 29 (docs/testing.md) and real input (P9).

git, SQLite, vim, a library tree, archives, compilers.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest

from tests.mounted.conftest import Mounts
from tests.support.mounted import NO_TIMER, ROOT, Mount, environment
from tests.support.trees import differences, tree

pytestmark = pytest.mark.mounted


# -- a library tree


def some_of(target: Path, wanted: int) -> int:
    """Copy whole folders of this Python's libraries until `wanted` files are there.

    Returns how many there are, not counting symlinks.
    """
    count = 0
    for kind in ("stdlib", "purelib"):
        source = Path(sysconfig.get_path(kind))
        for folder, folders, files in os.walk(source):
            folders[:] = sorted(name for name in folders if name not in ("__pycache__", "site-packages"))
            if count >= wanted:
                break
            place = target / kind / Path(folder).relative_to(source)
            place.mkdir(parents=True, exist_ok=True)
            for name in sorted(files):
                shutil.copy2(Path(folder, name), place / name, follow_symlinks=False)
                count += not (place / name).is_symlink()
    return count


def test_a_library_tree(fs: Mount, plain: Path) -> None:
    source = plain / "library"
    files = some_of(source, 1500)
    assert files >= 1500
    os.link(source / "stdlib/os.py", source / "hard")
    os.symlink("hard", source / "link")
    before = fs.n()
    fs.sh("cp -a $L $M/copy", L=source)
    assert before + files <= fs.n() <= before + files + 1  # the folders' times settle with the look
    wanted = tree(source)
    for view, root in fs.views():
        assert fs.sh("diff -r --no-dereference $L copy && echo same", cwd=root, L=source) == "same\n", view
        if view in ("live", "newest commit after a remount"):
            assert differences(tree(root / "copy"), wanted) == [], view
    fs.kill9()
    fs.start()
    for root in (fs.path, fs.newest()):
        assert fs.sh("diff -r --no-dereference $L copy && echo same", cwd=root, L=source) == "same\n"
    fs.check()


# -- git


def git_is_sound(fs: Mount, repository: Path) -> None:
    fs.sh("git -C $R fsck --full --strict", R=repository, GIT_OPTIONAL_LOCKS="0")
    assert fs.sh("git -C $R status --porcelain", R=repository, GIT_OPTIONAL_LOCKS="0") == ""


def test_case_27_git(mounts: Mounts) -> None:
    fs = mounts()
    fs.sh(
        """
        git init -q -b main repo; cp -r $SOURCES repo/sources; cd repo
        git add .; git commit -qm one
        for i in {1..5}; do echo $i >> sources/notes; git add -A; git commit -qm "change $i"; done
        git checkout -qb other HEAD~3; echo else > else; git add .; git commit -qm else
        git checkout -q main; git merge -q -m merged other; git tag v1
        git gc -q; git clone -q $M/repo $M/clone; git clone -q --no-local $M/repo $M/packed
        """,
        SOURCES=ROOT / "tests/support",
    )
    for view, root in fs.views():
        for name in ("repo", "clone", "packed"):
            git_is_sound(fs, root / name)
            assert fs.sh("git -C $R log --oneline | wc -l", R=root / name) == "8\n", view
    fs.kill9()
    fs.start()
    git_is_sound(fs, fs / "repo")
    git_is_sound(fs, fs.newest() / "clone")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_case_27_git_clone_of_this_project(mounts: Mounts) -> None:
    fs = mounts()
    fs.sh("git clone -q $ROOT $M/project", ROOT=ROOT)
    for view, root in fs.views():
        git_is_sound(fs, root / "project")
        assert (root / "project/pyproject.toml").exists(), view


# -- SQLite


def copied_rows(database: Path, place: Path) -> int:
    """Copy a database out of a folder with all that belongs to it, check it, count its rows."""
    place.mkdir()
    for suffix in ("", "-journal", "-wal"):
        path = database.with_name(database.name + suffix)
        if path.exists():
            shutil.copy(path, place / path.name)
    with closing(sqlite3.connect(place / database.name)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        tables = connection.execute("select count(*) from sqlite_master").fetchone()[0]
        rows = connection.execute("select count(*) from t").fetchone()[0] if tables else 0
        assert isinstance(rows, int)
    return rows


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_case_28_a_thousand_transactions(fs: Mount, tmp_path: Path, journal: str) -> None:
    points: dict[int, int] = {}
    with closing(sqlite3.connect(fs / "d.sqlite", isolation_level=None)) as connection:
        connection.execute(f"pragma journal_mode={journal}")
        connection.execute("pragma synchronous=FULL")
        connection.execute("create table t (n integer primary key, text blob)")
        for number in range(1, 1001):
            connection.execute("insert into t values (?, ?)", (number, b"x" * (number * 37 % 500)))
            if number % 100 == 0:
                points[fs.latest()] = number
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert len(points) == 10
    for commit_id, rows in points.items():
        assert copied_rows(fs.commit(commit_id) / "d.sqlite", tmp_path / f"copy{commit_id}") == rows
    fs.kill9()
    fs.start()
    assert copied_rows(fs / "d.sqlite", tmp_path / "live") == 1000


INSERTER = """
import sqlite3, sys
path, journal, mmap, who = sys.argv[1:]
connection = sqlite3.connect(path, timeout=60, isolation_level=None)
if journal != "WAL":  # that is in the file already, and setting it waits for no lock
    connection.execute(f"pragma journal_mode={journal}")
connection.execute(f"pragma mmap_size={mmap}")
connection.execute("pragma synchronous=FULL")
for number in range(int(who), int(who) + 200):
    connection.execute("begin immediate")
    connection.execute("insert into t values (?, ?)", (number, b"x" * (number * 37 % 500)))
    connection.execute("commit")
connection.close()
"""


@pytest.mark.parametrize("mmap", [0, 64 << 20])
@pytest.mark.parametrize("journal", ["DELETE", "TRUNCATE", "PERSIST", "WAL"])
def test_case_28_two_processes(fs: Mount, tmp_path: Path, journal: str, mmap: int) -> None:
    path = fs / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma journal_mode={journal}")
        connection.execute("create table t (n integer primary key, text blob)")
    created = fs.latest()
    command = [sys.executable, "-c", INSERTER, str(path), journal, str(mmap)]
    children = [subprocess.Popen([*command, who], env=environment()) for who in ("1000", "2000")]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
    assert copied_rows(path, tmp_path / "live") == 400
    assert copied_rows(fs.newest() / "d.sqlite", tmp_path / "newest") == 400
    ids = [commit_id for commit_id in fs.ids() if commit_id >= created]
    # A database without its write-ahead log or journal of the same commit would go back and forth.
    rows = [
        copied_rows(fs.commit(i) / "d.sqlite", tmp_path / f"copy{i}") for i in ids[:: max(1, len(ids) // 40)]
    ]
    assert rows == sorted(rows)
    fs.remount()
    assert copied_rows(path, tmp_path / "remounted") == 400


# -- vim


@pytest.mark.parametrize("backupcopy", ["auto", "yes", "no"])
def test_case_7_vim_saves(mounts: Mounts, backupcopy: str) -> None:
    """In no commit is the file missing, empty or partial.  (vim skips backups below /tmp unless told.)"""
    fs = mounts()
    contents = [b"".join(b"line %d of version 0\n" % i for i in range(2000))]
    (fs / "f").write_bytes(contents[0])
    before = fs.latest()
    for version in range(1, 4):
        printed = fs.sh(
            f"vim -Nu NONE -es -V1 --cmd 'set backup writebackup backupskip= backupcopy={backupcopy}'"
            f" -c '%s/version .*/version {version}/' -c 'wq' f 2>&1"
        )
        assert "E" not in {word[:1] for word in printed.split() if word[1:2].isdigit()}, printed
        contents.append(contents[0].replace(b"version 0", b"version %d" % version))
        assert (fs / "f").read_bytes() == contents[-1]
    seen = [found for _, found in fs.each_commit("f", before)]
    assert set(seen) <= set(contents)
    changes = [c for i, c in enumerate(seen) if i == 0 or c != seen[i - 1]]
    assert changes in (contents, contents[1:])  # its backup may be committed before the first new version
    for view, root in fs.views():
        assert (root / "f").read_bytes() == contents[-1], view


def test_case_29_vim_with_a_swap_file(fs: Mount) -> None:
    (fs / "f").write_text("one\n")
    printed = fs.sh(
        "vim -Nu NONE -es -V1 --cmd 'set swapfile directory=. updatecount=1 swapsync=fsync fsync'"
        " -c 'normal otwo' -c 'preserve' -c 'swapname' -c '!ls -A' -c 'w' -c 'normal othree' -c 'wq' f 2>&1"
    )
    assert ".f.swp" in printed
    assert "E" not in {word[:1] for word in printed.split() if word[1:2].isdigit()}, printed
    for view, root in fs.views():
        assert (root / "f").read_text() == "one\ntwo\nthree\n", view
        assert os.listdir(root) == ["f"], view


def test_case_29_fsync_of_files_and_folders(fs: Mount) -> None:
    fs.sh("mkdir d; echo x > d/f; sync d/f; sync d; sync .; sync -f d/f; sync -d d/f")


# -- others


def test_tar_there_and_back(fs: Mount, plain: Path) -> None:
    some_of(plain / "tree", 200)
    fs.sh("tar --format=posix -cf $P/a.tar -C $P tree; tar xf $P/a.tar; tar cf $P/b.tar -C $M tree", P=plain)
    for view, root in fs.views():
        assert fs.sh("tar df $P/a.tar && echo same", cwd=root, P=plain) == "same\n", view
    assert differences(tree(fs / "tree"), tree(plain / "tree")) == []


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_a_compiler_and_its_program(fs: Mount) -> None:
    (fs / "hello.c").write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    assert fs.sh("gcc -g -o hello hello.c; ./hello; $M/.commits/latest/hello") == "hello\nhello\n"


def test_python_runs_from_the_mount_and_its_history(fs: Mount) -> None:
    (fs / "package").mkdir()
    (fs / "package/__init__.py").write_text("VERSION = 1\n")
    old = fs.newest()
    (fs / "package/__init__.py").write_text("VERSION = 2\n")
    ask = f"{sys.executable} -c 'import package; print(package.VERSION)'"
    assert fs.sh(ask, cwd=old) == "1\n"
    assert fs.sh(ask) == "2\n"
    assert fs.sh(ask, PYTHONDONTWRITEBYTECODE="1") == "2\n"


def test_locks_between_processes(fs: Mount) -> None:
    printed = fs.sh(
        "exec 9> lock; flock 9; flock -n lock true || echo held; flock -u 9; flock -n lock echo free"
    )
    assert printed == "held\nfree\n"


def test_a_file_system_stress_of_many_processes(mounts: Mounts) -> None:
    """Four processes make, move and remove files in one folder; what is left is the same in all views."""
    fs = mounts(NO_TIMER)
    fs.sh(
        """
        mkdir shared; cd shared
        work() { for i in {1..60}; do
            echo $1 $i > $1.$i; mv $1.$i moved.$1.$i; ln moved.$1.$i link.$1.$i
            [ $((i % 3)) = 0 ] && rm moved.$1.$i; mkdir d.$1.$i; [ $((i % 2)) = 0 ] && rmdir d.$1.$i
        done; true; }
        for w in 1 2 3 4; do work $w & done; wait
        """
    )
    wanted = tree(fs.path)
    assert len(wanted) == 1 + 4 * (60 + 40 + 30)
    for view, root in fs.views():
        assert differences(tree(root), wanted) == [], view
    fs.check()
