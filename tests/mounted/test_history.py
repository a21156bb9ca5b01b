"""Cases 32 to 34 and 36 (docs/testing.md), and what `.commits` promises (P5)."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.mounted.conftest import Mounts
from tests.support.acts import EXCHANGE, NOREPLACE, Act, outcome, renameat2
from tests.support.mounted import NO_TIMER, Mount
from tests.support.trees import differences, tree

pytestmark = pytest.mark.mounted


@pytest.fixture
def old(fs: Mount) -> Path:
    """A commit's directory with a file, a link, a directory and an xattr in it; newer commits follow."""
    fs.sh("echo old > f; ln -s f l; mkdir d; echo in > d/g; setfattr -n user.a -v 1 f; chmod 640 f")
    commit = fs.newest()
    fs.sh("echo new > f; rm -r d l")
    assert fs.newest() != commit
    return commit


def test_every_commit_is_a_whole_tree(fs: Mount, plain: Path) -> None:
    """P3, P5: what was live at each commit stays readable under it, for ever."""
    acts = [
        "echo 1 > f",
        "mkdir -p d/e",
        "cp f d/e/g",
        "ln f h",
        "echo 22 > h",
        "mv d/e e",
        "ln -s e s",
        "chmod 700 e",
        "rm h",
        "setfattr -n user.k -v v e/g",
        "truncate -s 100000 f",
        "rm -r e s",
        "touch -d 2001-01-01 f",
        "cp -r /etc/skel d/",
    ]
    wanted = {}
    for act in acts:
        fs.sh(act)
        wanted[fs.latest()] = tree(fs.path)
    assert len(wanted) == len(acts)
    for commit_id, expected in wanted.items():
        assert differences(tree(fs.commit(commit_id)), expected) == []
    fs.kill9()
    fs.start()
    for commit_id, expected in wanted.items():
        assert differences(tree(fs.commit(commit_id)), expected) == []
    fs.check()


def test_case_32_ordinary_programs_stay_in_the_live_tree(fs: Mount, plain: Path) -> None:
    fs.sh("mkdir d; echo needle > d/f; echo needle > g; echo hay > g; echo hay > d/f")
    assert fs.sh("find . | sort") == ".\n./d\n./d/f\n./g\n"
    assert fs.sh("ls -A") == "d\ng\n"
    assert fs.sh("du -a . | wc -l") == "4\n"
    assert fs.sh("grep -r needle . || echo nothing") == "nothing\n"
    before = fs.n()
    fs.sh("cp -a $M $P/copy; tar cf $P/t.tar -C $M .; rsync -a $M/ $P/rsynced/", P=plain)
    assert fs.n() == before
    assert differences(tree(plain / "copy"), tree(fs.path)) == []
    assert tree(plain / "rsynced").keys() == tree(fs.path).keys()
    assert fs.sh("tar tf $P/t.tar | grep -c commits || true", P=plain) == "0\n"


def test_case_32_visible_when_asked_for(mounts: Mounts) -> None:
    fs = mounts(NO_TIMER, "history=visible")
    (fs / "f").write_text("f")
    assert ".commits" in os.listdir(fs.path)
    assert ".commits" not in os.listdir(fs.newest())


def test_case_33_history_cannot_be_changed(fs: Mount, old: Path, plain: Path) -> None:
    before = fs.n()
    (plain / "x").write_text("x")
    wanted = tree(old)
    refused: list[Act] = [
        lambda: os.utime(old / "f"),
        lambda: os.chmod(old / "f", 0o600),
        lambda: os.chmod(old, 0o777),
        lambda: os.chown(old / "f", 1, 1),
        lambda: os.truncate(old / "f", 0),
        lambda: os.unlink(old / "f"),
        lambda: os.unlink(old / "l"),
        lambda: os.rmdir(old / "d"),
        lambda: os.mkdir(old / "new"),
        lambda: os.mkfifo(old / "new"),
        lambda: os.symlink("x", old / "new"),
        lambda: os.link(old / "f", old / "new"),
        lambda: os.link(old / "f", fs / "new"),
        lambda: os.link(fs / "f", old / "new"),
        lambda: os.rename(old / "f", old / "new"),
        lambda: os.rename(old / "f", fs / "new"),
        lambda: os.rename(fs / "f", old / "new"),
        lambda: os.rename(fs / "f", old / "f"),
        lambda: renameat2(old / "f", fs / "f", EXCHANGE),
        lambda: renameat2(fs / "f", old / "new", NOREPLACE),
        lambda: os.open(old / "f", os.O_WRONLY),
        lambda: os.open(old / "f", os.O_RDWR),
        lambda: os.open(old / "f", os.O_RDONLY | os.O_TRUNC),
        lambda: os.open(old / "new", os.O_WRONLY | os.O_CREAT, 0o644),
        lambda: os.setxattr(old / "f", "user.b", b"1"),
        lambda: os.removexattr(old / "f", "user.a"),
        lambda: os.mkdir(fs / ".commits/new"),
        lambda: (fs / ".commits/new").write_text("x"),
        lambda: os.rename(fs / ".commits/latest", fs / ".commits/newest"),
        lambda: os.unlink(fs / ".commits/latest"),
    ]
    results = [(number, outcome(act)) for number, act in enumerate(refused)]
    assert [result for result in results if result[1] != "EROFS"] == []
    assert outcome(lambda: os.rmdir(old)) in ("EROFS", "ENOTEMPTY")
    assert outcome(lambda: os.rename(old, fs / "new")) in ("EROFS", "EBUSY")
    fs.sh(
        "! mv $P/x $O/x && ! mv $O/f $P/y && ! touch $O/f && ! rm -rf $O/d && ! cp $P/x $O/f", O=old, P=plain
    )
    assert fs.n() == before
    assert tree(old) == wanted


def test_case_34_a_commits_time(fs: Mount) -> None:
    fs.sh("touch -d 2001-01-01 f; touch -d 2002-01-01 $M")
    (fs / "g").write_text("g")
    for line in fs.log():
        commit = fs.commit(line["id"])
        assert commit.stat().st_mtime_ns == line["time_ns"]
        told = datetime.fromisoformat(line["time"])
        assert told.astimezone(UTC).timestamp() == pytest.approx(line["time_ns"] / 1e9, abs=1e-3)
    assert fs.sh("stat -c %y f", cwd=fs.newest()).startswith("2001-01-01 00:00:00.0")


def test_case_36_the_log_of_one_path(fs: Mount) -> None:
    for number in range(50):
        (fs / f"other{number}").write_text("other")
        if number % 15 == 0:
            (fs / "f").write_text(f"version {number}")
    assert len(fs.log("f")) == 4
    os.unlink(fs / "f")
    fs.latest()
    assert len(fs.log("f")) == 5


def test_names_that_are_not_listed_resolve_to_listed_ones(fs: Mount) -> None:
    for number in range(5):
        (fs / "f").write_text(str(number))
    newest = fs.latest()
    listed = set(os.listdir(fs / ".commits"))
    assert {f"{i:08}" for i in range(1, newest + 1)} <= listed
    resolved = {
        str(newest): newest,
        "1": 1,
        "latest~0": newest,
        "latest~3": newest - 3,
        "2099-01-01T00:00": newest,
        "2099-01-01": newest,
        "@GMT-2099.01.01-00.00.00": newest,
    }
    for name, commit_id in resolved.items():
        link = fs / ".commits" / name
        assert os.path.islink(link), name
        assert os.path.realpath(link) == os.path.realpath(fs.commit(commit_id)), name
        assert name in listed or name not in os.listdir(fs / ".commits")
    later = [str(newest + 1), f"{newest + 1:08}"]
    for name in [*later, "0", "latest~99", "1999-01-01T00:00", "none", "new\nline", "~"]:
        assert outcome(lambda name=name: os.lstat(fs / ".commits" / name)) == "ENOENT", name  # type: ignore[misc]
    assert outcome(lambda: os.lstat(fs / ".commits" / ("n" * 300))) == "ENAMETOOLONG"


def test_an_id_that_was_missing_is_found_once_it_exists(fs: Mount) -> None:
    """No ENOENT under .commits is cached by the kernel."""
    coming = fs.latest() + 1
    assert not fs.commit(coming).exists()
    assert not (fs / f".commits/{coming}").exists()
    (fs / "f").write_text("f")
    assert (fs.commit(coming) / "f").read_text() == "f"
    assert os.readlink(fs / f".commits/{coming}") == f"{coming:08}"


def test_inode_numbers(fs: Mount) -> None:
    """Equal versions share a number, and so the page cache; nothing shares one with the live tree."""
    (fs / "f").write_text("f")
    first = fs.newest()
    (fs / "g").write_text("g")
    second = fs.newest()
    (fs / "f").write_text("changed")
    third = fs.newest()
    numbers = [(root / "f").stat().st_ino for root in (fs.path, first, second, third)]
    assert numbers[1] == numbers[2]
    assert len(set(numbers)) == 3
    assert numbers[0] < 1 << 32
    assert len({root.stat().st_ino for root in (fs.path, first, second, third)}) == 4
    assert all(stat.S_ISDIR(root.stat().st_mode) for root in (first, second))


def test_a_shell_stays_in_its_commit(fs: Mount) -> None:
    printed = fs.sh("echo 1 > f; cd .commits/latest/; echo 2 > $M/f; cat f; pwd -P; cd ..; cat latest/f")
    lines = printed.splitlines()
    assert (lines[0], lines[2]) == ("1", "2")
    assert lines[1].startswith(str(fs / ".commits/0"))


def test_diff_between_commits(fs: Mount) -> None:
    fs.sh("seq 100 > f; sed -i s/50/fifty/ f")
    printed = fs.sh("diff -r .commits/latest~1/ .commits/latest/", check=False)
    assert "< 50\n---\n> fifty\n" in printed
    assert fs.sh("diff -r .commits/latest/ . && echo same") == "same\n"


def test_facts_of_a_commit(fs: Mount) -> None:
    fs.sh("echo hello > f")
    line = fs.log("-n", "1")[0]
    assert [(c["path"].lstrip("/"), c["size"]) for c in line["changes"] if c["path"].strip("/")] == [("f", 6)]
    assert line["uid"] == os.geteuid()
    facts = [name for name in os.listxattr(fs.newest()) if name.startswith("user.commitfs.")]
    assert facts
    assert all(os.getxattr(fs.newest(), name) is not None for name in facts)
