"""Run the tests of the C part under the address and undefined behaviour sanitizers.

    python -m tests.torture.sanitized [PYTEST ARGUMENTS]

Copies the sources to a temporary folder, builds them there with COMMITFS_SANITIZE and runs the tests that
reach C without a mount.  First reads one byte too many on purpose: were that not reported, the rest would
mean nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/native",
    "tests/format/test_node.py",
    "tests/store/test_tree.py",
    "tests/store/test_tree_shape.py",
]
ONE_TOO_MANY = """
from commitfs.native import ffi, lib
lib.cfs_crc32c(0, ffi.new("char[]", 1000), 1001)
"""


@contextmanager
def sanitized_copy() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with the project, its C part built for the sanitizers, and the environment Python has to
    be started with there."""
    with tempfile.TemporaryDirectory(prefix="commitfs-sanitized-") as name:
        folder = Path(name)
        for part in ("commitfs", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            else:
                shutil.copy(source, folder)
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        sanitize = {**os.environ, "COMMITFS_SANITIZE": "address,undefined", "COMMITFS_WERROR": "1"}
        subprocess.run(build, cwd=folder, env=sanitize, check=True)
        runtime = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], stdout=subprocess.PIPE, text=True, check=True
        )
        yield (
            folder,
            {
                **os.environ,
                "LD_PRELOAD": runtime.stdout.strip(),
                # The interpreter never frees everything.
                "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
                "UBSAN_OPTIONS": "print_stacktrace=1",
                # Its own allocator would hide where its blocks end.
                "PYTHONMALLOC": "malloc",
            },
        )


def see_canary(folder: Path, environment: dict[str, str]) -> None:
    """RuntimeError unless the sanitizer reports a read of one byte too many."""
    canary = subprocess.run(
        [sys.executable, "-c", ONE_TOO_MANY],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if canary.returncode == 0 or "heap-buffer-overflow" not in canary.stderr:
        raise RuntimeError(f"the sanitizer does not see a read behind the end: {canary.stderr}")


def run_tests(folder: Path, environment: dict[str, str], arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # That one would do the same again.
    command.append("--ignore=tests/native/test_sanitized.py")
    return subprocess.run([*command, *arguments], cwd=folder, env=environment, check=False).returncode


def main(arguments: list[str]) -> int:
    with sanitized_copy() as (folder, environment):
        see_canary(folder, environment)
        print("the sanitizer sees a read behind the end")
        return run_tests(folder, environment, [*TESTS, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
