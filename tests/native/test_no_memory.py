"""The tree without memory: see no_memory.c, which is built and run here under the sanitizers."""

import os
import subprocess
from pathlib import Path

import pytest

import commitfs.native

SOURCE = Path(__file__).with_name("no_memory.c")
SANITIZE = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_every_allocation_may_fail(tmp_path: Path) -> None:
    """T1, T2: what fails for want of memory has changed nothing; and nothing is leaked or overrun."""
    program = tmp_path / "no_memory"
    include = Path(commitfs.native.__file__).parent
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", f"-I{include}", "-o", str(program), str(SOURCE)]
    command += ["-llz4", "-pthread"]
    try:
        sanitizers = subprocess.run([*command, *SANITIZE], capture_output=True, check=False).returncode == 0
        if not sanitizers:
            subprocess.run(command, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("no gcc")
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 1000
