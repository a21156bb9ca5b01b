"""Bad input gets one line on stderr that begins "commitfs:", a code that is not 0, and changes nothing."""

import json
import os
import runpy
import shutil
import time
from pathlib import Path

import click
import pytest

from commitfs.cli import app
from commitfs.cli.app import BUG, run
from commitfs.errors import CommitfsError, CorruptError, UsageError
from commitfs.store.store import Store
from tests.cli.conftest import Cli, Ran

EXAMPLE = Path(__file__).parents[2] / "examples/store_only.py"


def refused(ran: Ran, *words: str) -> None:
    assert ran.code != 0
    assert ran.err.startswith("commitfs: ")
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


@pytest.fixture
def bad(tmp_path: Path, store: Path) -> Path:
    """A folder of things that are no store."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("Dear diary,\n" * 2000)
    (tmp_path / "zeros").write_bytes(bytes(20_000))
    whole = store.read_bytes()
    (tmp_path / "short").write_bytes(whole[:4100])
    newer = bytearray(whole)
    newer[7:8] = newer[4103:4104] = b"9"
    (tmp_path / "newer").write_bytes(newer)
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


STORES = ["folder", "empty", "text", "zeros", "short", "newer", "missing", "text/below"]
COMMANDS = [["log"], ["log", "-n", "1"], ["show", "1"], ["ls", "latest"], ["cat", "1", "f"], ["stats"]]


@pytest.mark.parametrize("command", [*COMMANDS, ["check"]], ids=" ".join)
@pytest.mark.parametrize("name", STORES)
def test_what_is_no_store(cli: Cli, bad: Path, name: str, command: list[str]) -> None:
    before = {path.name: path.read_bytes() for path in bad.iterdir() if path.is_file()}
    ran = cli(command[0], bad / name, *command[1:])
    refused(ran, name)
    assert ran.out == b""
    assert ran.code == 2 or command != ["check"]
    assert {path.name: path.read_bytes() for path in bad.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "command", [["ls", "latest"], ["cat", "latest", "f"], ["stats"], ["stats", "--json"]]
)
def test_a_store_that_is_no_filesystem(cli: Cli, tmp_path: Path, command: list[str]) -> None:
    """It can hold any tree, with keys that mean nothing to a filesystem."""
    path = tmp_path / "s.db"
    set_value = runpy.run_path(str(EXAMPLE))["set_value"]
    Store.create(path)
    store = Store.open(path, writable=True)
    set_value(store, b"colour", b"red")
    store.close()
    ran = cli(command[0], path, *command[1:])
    refused(ran)
    assert (ran.code, ran.out) == (1, b"")
    if command[0] == "stats":
        refused(ran, str(path), "no root directory")


ID_ERRORS = [
    "0",
    "9",
    "00000009",
    "latest~8",
    "latest~",
    "nothing",
    "1999-01-01",
    "",
    "~",
    "../1",
    "1\n",
    "-0x1",
]


@pytest.mark.parametrize("commit", ID_ERRORS)
@pytest.mark.parametrize("command", ["show", "ls", "cat"])
def test_ids_that_name_nothing(cli: Cli, store: Path, command: str, commit: str) -> None:
    rest = ["a.txt"] if command == "cat" else []
    refused(cli(command, "--", store, commit, *rest))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_time_before_the_first_commit(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """A date alone is its midnight: the message shows it, and where the commits begin."""
    first = json.loads(cli("show", store, "1", "--json").out)["time_ns"]
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        day = time.strftime("%Y-%m-%d", time.localtime(first // 10**9))
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first // 10**9))
        ran = cli("show", store, day)
    finally:
        monkeypatch.undo()
        time.tzset()
    refused(ran, f"no commit is as old as {day} 00:00:00: the oldest is of {moment}")


PATHS = [
    ("cat", "missing", "missing"),
    ("cat", "e", "directory"),
    ("cat", "", "directory"),
    ("cat", "/", "directory"),
    ("cat", "a.txt/x", "a.txt/x"),
    ("cat", "e/../a.txt", ".."),
    ("cat", "new\nline", "new\\nline"),
    ("cat", "\udcff\x1b[2J", "\\xff\\x1b"),
    ("cat", "n" * 5000, "nnn"),
    ("ls", "missing/deep", "missing/deep"),
    ("ls", "../..", ".."),
]


@pytest.mark.parametrize(("command", "path", "word"), PATHS)
def test_paths_that_are_not_there(cli: Cli, store: Path, command: str, path: str, word: str) -> None:
    ran = cli(command, store, "latest", path)
    refused(ran, word)
    assert ran.out == b""


USAGE = [
    ["log", ""],
    ["check", ""],
    ["mount", "", "m"],
    ["mount", "s.db", ""],
    ["mount", "s.db", "m", "--log", ""],
    ["umount", ""],
    ["log", "missing.db"],
    ["nonsense"],
    ["log"],
    ["log", "s.db", "path", "more"],
    ["log", "--nonsense", "s.db"],
    ["log", "-n", "x", "s.db"],
    ["log", "-n", "-1", "s.db"],
    ["show", "s.db"],
    ["cat", "s.db", "1"],
    ["mount"],
    ["mount", "s.db"],
    ["umount"],
    ["--nonsense"],
    ["mount", "s.db", "m", "-o"],
]


@pytest.mark.parametrize("args", USAGE, ids=" ".join)
def test_wrong_usage(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli(*args)
    refused(ran)
    assert ran.code == 2
    assert os.listdir(tmp_path) == []


MOUNTS = [
    (["s.db", "missing"], "missing"),
    (["s.db", "file"], "not a directory"),
    (["s.db", "full"], "not empty"),
    (["folder", "m"], "directory"),
    (["no/such/s.db", "m"], "no/such"),
    (["m/s.db", "m"], "hidden"),
    (["s.db", "m", "-o", "nonsense"], "settle=SECONDS"),
    (["s.db", "m", "-o", "settle=soon"], "settle"),
    (["s.db", "m", "-o", "align=1024"], "8, 512 or 4096"),
    (["s.db", "m", "-o", "ro"], "no store"),
    (["s.db", "m", "--log", "no/such/log"], "no/such/log"),
    (["s.db", "missing", "--log", "new.log"], "missing"),
    (["s.db", "missing", "--log", "file"], "missing"),
    (["file", "m", "--log", "new.log"], "not a store"),
    (["fifo", "m"], "regular"),
]


@pytest.mark.mounted
@pytest.mark.parametrize("foreground", [True, False], ids=["foreground", "background"])
@pytest.mark.parametrize(("args", "word"), MOUNTS, ids=["_".join(args) for args, _ in MOUNTS])
def test_mounts_that_cannot_be(tmp_path: Path, args: list[str], word: str, foreground: bool) -> None:
    from tests.cli.test_process import commitfs

    (tmp_path / "m").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "full/inside").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    done = commitfs("mount", *args, *(["-f"] if foreground else []), cwd=tmp_path)
    refused(Ran(done.returncode, done.stdout, done.stderr.decode()), word)
    assert done.stdout == b""
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.mounted
def test_no_fusermount(tmp_path: Path) -> None:
    from tests.cli.test_process import commitfs

    (tmp_path / "m").mkdir()
    for args in (["mount", "s.db", "m"], ["umount", "m"]):
        done = commitfs(*args, cwd=tmp_path, variables={"PATH": "/nowhere"})
        refused(Ran(done.returncode, done.stdout, done.stderr.decode()), "fusermount3")
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="no fusermount3")
def test_umount_of_what_is_no_mount(cli: Cli, tmp_path: Path) -> None:
    refused(cli("umount", tmp_path), str(tmp_path))
    refused(cli("umount", tmp_path / "missing"), "missing")
    refused(cli("umount", "/proc"), "not a commitfs")


ENDINGS = [
    (CommitfsError("two\nlines\r\x1b[31m"), 1, "commitfs: two\\nlines\\r\\x1b[31m\n"),
    (UsageError("what"), 2, "commitfs: what\n"),
    (CorruptError("tree node", 8192), 1, "commitfs: tree node at offset 8192 is damaged\n"),
    (
        OSError(28, "No space left on device", b"/s\xff.db"),
        1,
        "commitfs: /s\\xff.db: No space left on device\n",
    ),
    (OSError(5, "Input/output error"), 1, "commitfs: Input/output error\n"),
    (OSError("odd"), 1, "commitfs: odd\n"),
    (MemoryError(), 1, "commitfs: out of memory\n"),
    (ZeroDivisionError("a\nbug"), BUG, "commitfs: this is a bug in commitfs: ZeroDivisionError: a\\nbug\n"),
    (click.UsageError("Missing\nargument"), 2, "commitfs: Missing\\nargument\n"),
    (KeyboardInterrupt(), 130, ""),
    (click.Abort(), 130, ""),
]


@pytest.mark.parametrize(("ending", "code", "said"), ENDINGS, ids=lambda value: repr(value)[:30])
def test_every_ending_is_one_line_and_a_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, ending: BaseException, code: int, said: str
) -> None:
    def callback(**kwargs: object) -> None:
        raise ending

    monkeypatch.setattr(app.commands.commands["stats"], "callback", callback)
    ran = cli("stats", "s.db")
    assert (ran.code, ran.out, ran.err) == (code, b"", said)


def test_check_that_cannot_check_is_not_damage(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("commitfs.store.check.check_store", broken)
    ran = cli("check", store)
    refused(ran, "Input/output error")
    assert ran.code == 2


def test_log_of_a_path_that_never_was(cli: Cli, store: Path) -> None:
    for more in ([], ["--json"], ["-n", "1"]):
        ran = cli("log", store, "e/missing", *more)
        refused(ran, "e/missing is in no commit")
        assert (ran.code, ran.out) == (1, b"")
    assert cli("log", store, "e/missing", "-n", "0") == (0, b"", "")
    assert cli("log", store, "d").code == 0, "it was there once"


@pytest.mark.mounted
def test_a_working_directory_that_is_gone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    refused(cli("umount", "m"), "working directory is gone")
    refused(cli("mount", "s.db", "m"), "working directory is gone")


def test_main_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["commitfs", "nonsense"])
    with pytest.raises(SystemExit) as caught:
        app.main()
    assert caught.value.code == 2
    assert run(["--version"]) == 0
    assert run(["log", "--help"]) == 0
