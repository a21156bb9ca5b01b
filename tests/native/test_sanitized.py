"""The C part under the address and undefined behaviour sanitizers: its own tests and those of the format,
and a short fuzzing.  `python -m tests.torture.sanitized` runs more of them, tests.torture.fuzz for longer."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture import sanitized
from tests.torture.sanitized import run_tests, sanitized_copy, see_canary

Copy = tuple[Path, dict[str, str]]


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    with sanitized_copy() as made:
        see_canary(*made)
        yield made


def test_tests_pass(copy: Copy) -> None:
    """But for those that fuzz, which is done below."""
    tests = ["tests/native", "tests/format", "--ignore=tests/format/test_fuzz.py"]
    assert run_tests(*copy, tests) == 0


def test_nonsense_breaks_nothing(copy: Copy) -> None:
    folder, environment = copy
    command = [sys.executable, "-m", "tests.torture.fuzz", "--inputs", "48000", "--seed", "7"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "48000 inputs, 0 broken" in done.stdout


def test_a_canary_that_is_not_seen_is_told(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitized, "ONE_TOO_MANY", "from commitfs.native import lib")
    with pytest.raises(RuntimeError, match="does not see"):
        see_canary(*copy)
