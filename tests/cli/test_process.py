"""The command line as a process: locales, pipes, signals, terminals, speed of --help."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from commitfs.cli.app import main
from tests.cli.conftest import BIG, ODD

ROOT = Path(__file__).resolve().parents[2]


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    ours = ("LC_", "LANG", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PYTHONPATH": str(ROOT), **(variables or {})}


def commitfs(
    *args: object, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    words = [arg if isinstance(arg, bytes) else str(arg) for arg in args]
    return subprocess.run(
        [sys.executable, "-m", "commitfs", *words],
        cwd=cwd,
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )


LOCALES = [
    {"LANG": "C"},
    {"LC_ALL": "C"},
    {"LC_ALL": "POSIX"},
    {"LC_ALL": "C.UTF-8"},
    {"LC_ALL": "xx_YY.nothing"},
    {},
]


@pytest.mark.parametrize("variables", LOCALES, ids=str)
def test_case_19_bytes_whatever_the_locale(store: Path, variables: dict[str, str]) -> None:
    done = commitfs("log", store, "--json", variables=variables)
    assert (done.returncode, done.stderr) == (0, b"")
    paths = [change["path"] for line in done.stdout.splitlines() for change in json.loads(line)["changes"]]
    assert b"d/" + ODD in [path.encode("utf-8", "surrogateescape") for path in paths]
    assert commitfs("cat", store, "4", b"d/" + ODD, variables=variables).stdout == b"odd"
    assert commitfs("ls", store, "4", "d", variables=variables).stdout == ODD + b"\n"
    done = commitfs("log", store, b"d/" + ODD, variables=variables)
    assert len(done.stdout.splitlines()) == 2
    done = commitfs("cat", store, "4", b"d/\xfe", variables=variables)
    assert done.returncode == 1
    assert done.stderr.startswith(b"commitfs: d/\\xfe in commit 00000004")


def test_a_store_whose_name_is_no_text(store: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/" + ODD
    os.symlink(store, odd)
    done = commitfs("stats", odd, "--json", variables={"LC_ALL": "C"})
    assert json.loads(done.stdout)["commits"] == 8


def test_a_reader_that_leaves(store: Path) -> None:
    """As if SIGPIPE had killed it, and without a word."""
    process = subprocess.Popen(
        [sys.executable, "-m", "commitfs", "cat", str(store), "latest", "big"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(10) == BIG[:10]
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE


def test_a_closed_standard_output(store: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -m commitfs log "$1" >&-', sys.executable, str(store)],
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.startswith(b"commitfs: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(("command", "code"), [("log", 1), ("check", 2)])
def test_a_full_disk_under_the_output(store: Path, command: str, code: int) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "commitfs", command, str(store)],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == code
    assert done.stderr == b"commitfs: standard output: No space left on device\n"


def test_no_null_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.devnull", "/nonexistent/null")
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "commitfs: /nonexistent/null: No such file or directory\n"


def run_on_terminal(*args: object) -> bytes:
    """Output and errors of a command that has a terminal."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "commitfs", *map(str, args)], env=environment(), stdout=other, stderr=other
    )
    os.close(other)
    said = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        said += part
    os.close(main)
    assert process.wait(timeout=60) == 0
    return said


def test_names_cannot_speak_to_a_terminal(store: Path) -> None:
    assert run_on_terminal("ls", store, "4", "d") == rb"b\xff\n\x1b'" + b"\r\n"
    assert b"\x1b" not in run_on_terminal("log", store)


def test_progress_is_for_terminals_only(store: Path) -> None:
    assert b"100 %" in run_on_terminal("check", store)
    assert commitfs("check", store).stderr == b""


def test_help_loads_little() -> None:
    program = (
        "import sys\n"
        "from commitfs.cli.app import run\n"
        "code = run(['--help'])\n"
        "heavy = {'trio', 'pyfuse3', 'cffi', 'subprocess', 'commitfs.store', 'commitfs.native'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "umount" in done.stdout


def test_no_arguments_show_help() -> None:
    done = commitfs()
    assert done.returncode == 0
    assert done.stdout.startswith(b"Usage: commitfs")
    assert done.stdout == commitfs("--help").stdout == commitfs("-h").stdout
