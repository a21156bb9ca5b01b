"""Each thing that speaks against a mount gives one clear line, and nothing is created or changed."""

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from commitfs.daemon import mountinfo, preflight
from commitfs.daemon.preflight import (
    check_allow_other,
    check_device,
    check_mountpoint,
    check_store_path,
    find_fusermount,
    is_dead,
)
from commitfs.errors import CommitfsError, UsageError


def refused(error: pytest.ExceptionInfo[CommitfsError], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_no_device(tmp_path: Path) -> None:
    with pytest.raises(CommitfsError) as caught:
        check_device(str(tmp_path / "fuse"))
    refused(caught, "fuse is missing", "modprobe")


def test_a_device_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CommitfsError) as caught:
        check_device(str(tmp_path))
    refused(caught, str(tmp_path), "cannot be opened")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, ("/dev/fuse is closed to this user", "chmod 666 /dev/fuse")),
        (errno.EPERM, ("/dev/fuse is forbidden", "container")),
    ],
)
def test_a_device_that_is_closed(
    monkeypatch: pytest.MonkeyPatch, number: int, words: tuple[str, ...]
) -> None:
    def closed(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(CommitfsError) as caught:
        check_device("/dev/fuse")
    refused(caught, *words)


def test_no_fusermount(tmp_path: Path) -> None:
    with pytest.raises(CommitfsError) as caught:
        find_fusermount(str(tmp_path))
    refused(caught, "fusermount3 is missing", "fuse3")
    program = tmp_path / "fusermount3"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(CommitfsError):
        find_fusermount(str(tmp_path))
    program.chmod(0o755)
    assert find_fusermount(f"/nowhere:{tmp_path}") == str(program)


@pytest.mark.parametrize(
    ("conf", "uid", "allowed"),
    [
        ("", 1000, False),
        ("#user_allow_other\n", 1000, False),
        ("user_allow_others\n", 1000, False),
        ("mount_max = 10\n  user_allow_other \n", 1000, True),
        ("", 0, True),
        (None, 1000, False),
    ],
)
def test_case_40_allow_other(tmp_path: Path, conf: str | None, uid: int, allowed: bool) -> None:
    path = tmp_path / "fuse.conf"
    if conf is not None:
        path.write_text(conf)
    if allowed:
        check_allow_other(str(path), uid)
        return
    with pytest.raises(UsageError) as caught:
        check_allow_other(str(path), uid)
    refused(caught, "user_allow_other", str(path))


class TestStorePath:
    def test_there(self, tmp_path: Path) -> None:
        (tmp_path / "s.db").write_bytes(b"")
        assert check_store_path(os.fsencode(tmp_path / "s.db"), read_only=False) is True

    def test_to_be_made(self, tmp_path: Path) -> None:
        assert check_store_path(os.fsencode(tmp_path / "s.db"), read_only=False) is False
        assert os.listdir(tmp_path) == []

    def test_not_made_for_reading(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            check_store_path(os.fsencode(tmp_path / "s.db"), read_only=True)
        refused(caught, "no store", "s.db")

    def test_no_folder_for_it(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        for name in ("no/such/s.db", "file/s.db"):
            with pytest.raises(UsageError) as caught:
                check_store_path(os.fsencode(tmp_path / name), read_only=False)
            refused(caught, name)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_that_takes_no_files(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o555)
        with pytest.raises(UsageError, match="not writable"):
            check_store_path(os.fsencode(tmp_path / "s.db"), read_only=False)

    def test_a_store_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "s.db"
        path.write_bytes(b"")
        monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
        with pytest.raises(UsageError) as caught:
            check_store_path(os.fsencode(path), read_only=False)
        refused(caught, str(path), "not writable", "-o ro")
        assert check_store_path(os.fsencode(path), read_only=True) is True

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "loop").symlink_to("loop")
        for name, word in (("", "directory"), ("fifo", "regular"), ("loop", "cannot use")):
            with pytest.raises(UsageError) as caught:
                check_store_path(os.fsencode(tmp_path / name), read_only=False)
            refused(caught, word)


class TestMountpoint:
    STORE = b"/somewhere/s.db"

    def check(self, path: Path, store: bytes = STORE) -> None:
        check_mountpoint(os.fsencode(path), store, "/nonexistent/fusermount3")

    def test_an_empty_directory(self, tmp_path: Path) -> None:
        self.check(tmp_path)

    def test_bad_ones(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        (tmp_path / "full/d").mkdir(parents=True)
        for name, word in (("missing", "exist"), ("file", "not a directory"), ("full", "not empty")):
            with pytest.raises(UsageError) as caught:
                self.check(tmp_path / name)
            refused(caught, name, word)
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["d", "file", "full"]

    def test_a_store_below_it(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            self.check(tmp_path, os.fsencode(tmp_path / "deep/s.db"))
        refused(caught, "deep/s.db", "hidden")
        self.check(tmp_path, os.fsencode(str(tmp_path) + "x/s.db"))

    def test_in_use(self) -> None:
        with pytest.raises(UsageError) as caught:
            check_mountpoint(b"/proc", self.STORE, "fusermount3")
        refused(caught, "/proc is in use", "proc")

    def test_a_live_mount_is_not_dead(self, tmp_path: Path) -> None:
        assert not is_dead(os.fsencode(tmp_path))
        assert not is_dead(os.fsencode(tmp_path / "missing"))


class TestDeadMount:
    """What is done about a mount whose daemon is gone, with a table and a fusermount3 of our own."""

    @pytest.fixture
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        table = tmp_path / "mountinfo"
        monkeypatch.setattr(mountinfo, "MOUNTINFO", str(table))
        monkeypatch.setattr(preflight, "is_dead", lambda path: True)
        return table

    def program(self, tmp_path: Path, script: str) -> str:
        path = tmp_path / "fusermount3"
        path.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def line(self, point: Path, fstype: str) -> str:
        return f"9 1 0:9 / {point} rw - {fstype} /s.db rw\n"

    def test_it_is_removed_lazily(self, tmp_path: Path, table: Path) -> None:
        point = tmp_path / "m"
        point.mkdir()
        table.write_text(self.line(point, "fuse.commitfs") * 2)
        remove = (
            f"lines = open({str(table)!r}).readlines()\n"
            f"open({str(table)!r}, 'w').writelines(lines[1:])\n"
            f"open({str(tmp_path / 'args')!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))"
        )
        check_mountpoint(os.fsencode(point), b"/s.db", self.program(tmp_path, remove))
        assert (tmp_path / "args").read_text() == f"-u -z -- {point}\n" * 2, "both of those stacked there"

    def test_it_cannot_be_removed(self, tmp_path: Path, table: Path) -> None:
        point = tmp_path / "m"
        point.mkdir()
        table.write_text(self.line(point, "fuse.commitfs"))
        program = self.program(tmp_path, "sys.exit('fusermount3: not yours')")
        with pytest.raises(CommitfsError) as caught:
            check_mountpoint(os.fsencode(point), b"/s.db", program)
        refused(caught, str(point), "dead", "not yours")

    def test_other_peoples_file_systems_are_left_alone(self, tmp_path: Path, table: Path) -> None:
        point = tmp_path / "m"
        point.mkdir()
        table.write_text(self.line(point, "fuse.sshfs"))
        with pytest.raises(UsageError, match="in use"):
            check_mountpoint(os.fsencode(point), b"/s.db", "/nonexistent")


def test_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o710)
    check_mountpoint(os.fsencode(tmp_path), b"/s.db", "/nonexistent")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o710
