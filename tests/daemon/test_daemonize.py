"""The parent hears how the child's start went, whatever becomes of the child.

Each case runs in a process of its own: a daemon must not be forked out of the test runner.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, signal, sys, time
from commitfs.daemon.daemonize import in_background
from commitfs.errors import CommitfsError, UsageError

def work(ready):
{work}

try:
    said = in_background(work, prepare=lambda: None)
except CommitfsError as exc:
    print(json.dumps(dict(error=str(exc), code=exc.exit_code)))
else:
    print(json.dumps(dict(said=said)))
"""


def start(work: str, **kwargs: Any) -> subprocess.Popen[str]:
    program = PROGRAM.format(work=textwrap.indent(textwrap.dedent(work), "    "))
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


def told(work: str) -> dict[str, Any]:
    process = start(work)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


@pytest.mark.parametrize("word", ["", "made a new store at /s\udcff"])
def test_ready(word: str) -> None:
    assert told(f"ready({word!a})") == {"said": word}


@pytest.mark.parametrize(
    ("work", "error", "code"),
    [
        ("raise UsageError('no such mountpoint')", "no such mountpoint", 2),
        ("raise CommitfsError('line\\\\nbreak \\\\udcff')", "line\nbreak \udcff", 1),
        ("raise ExceptionGroup('g', [ExceptionGroup('h', [UsageError('inner')])])", "inner", 2),
        ("raise OSError(28, 'No space left', '/s.db')", "/s.db: No space left", 1),
        ("raise ZeroDivisionError('a bug')", "ZeroDivisionError: a bug", 1),
        ("sys.exit('leaving')", "SystemExit: leaving", 1),
        ("os._exit(7)", "the daemon ended before it served: exit code 7", 1),
        ("os.kill(os.getpid(), 9)", "the daemon ended before it served: killed by signal 9", 1),
    ],
)
def test_failure_before_it_serves(work: str, error: str, code: int) -> None:
    assert told(work.replace("\\\\", "\\")) == {"error": error, "code": code}


def test_failure_afterwards_is_not_the_parents(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert told(f"ready(''); open({str(mark)!r}, 'w'); raise ValueError") == {"said": ""}
    deadline = time.monotonic() + 30
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_child_has_no_ties(tmp_path: Path) -> None:
    """A session of its own, no terminal, no streams, no folder that could not be unmounted."""
    report = tmp_path / "report"
    work = f"""
        links = [os.readlink(f"/proc/self/fd/{{n}}") for n in (0, 1, 2)]
        facts = dict(sid=os.getsid(0), pid=os.getpid(), streams=links, cwd=os.getcwd())
        with open({str(report)!r}, "w") as file:
            json.dump(facts, file)
        ready("")
    """
    assert told(work) == {"said": ""}
    facts = json.loads(report.read_text())
    assert facts["sid"] == facts["pid"] != os.getsid(0)
    assert facts["streams"] == ["/dev/null"] * 3
    assert facts["cwd"] == "/"


def test_interrupting_the_parent_ends_the_child(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    process = start(
        f"""
        with open({str(pid_file)!r} + "~", "w") as file:
            file.write(str(os.getpid()))
        os.rename({str(pid_file)!r} + "~", {str(pid_file)!r})
        time.sleep(60)
        """
    )
    deadline = time.monotonic() + 30
    while not pid_file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child = int(pid_file.read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_threads_are_refused() -> None:
    program = (
        "import threading, time\n"
        "from commitfs.daemon.daemonize import in_background\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "in_background(lambda ready: ready(''), lambda: None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "several threads" in done.stderr
