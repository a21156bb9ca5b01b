"""tests/native/interpose.c, built and preloaded: writes and syncs that do as a script says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "native/interpose.c"


def build(folder: Path) -> Path:
    """The library; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = folder / "interpose.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def variables(library: Path, script: Path, calls: Path) -> dict[str, str]:
    """For the environment of a process whose calls obey the file `script` and are noted in `calls`."""
    return {
        "LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {library}",
        "COMMITFS_SCRIPT": str(script),
        "COMMITFS_CALLS": str(calls),
    }
