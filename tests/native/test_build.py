"""The C part is there, is the right one, and says what is missing where it cannot be built."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import commitfs.native
from commitfs.native import lib

FOLDER = Path(commitfs.native.__file__).parent


def test_the_stub_names_what_there_is() -> None:
    stub = ast.parse((FOLDER / "_native.pyi").read_text())
    (described,) = (node for node in stub.body if isinstance(node, ast.ClassDef))
    names = {node.name for node in described.body if isinstance(node, ast.FunctionDef)}
    names |= {
        node.target.id
        for node in described.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert names == {name for name in dir(lib) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"PKG_CONFIG_LIBDIR": "/nonexistent", "PKG_CONFIG_PATH": ""}, "liblz4 and its header not found"),
        ({"CC": "no-such-compiler -O2"}, "no C compiler (no-such-compiler) found"),
        ({"PATH": "/nonexistent", "CC": sys.executable}, "pkg-config not found"),
    ],
)
def test_what_is_missing_is_said_in_one_line(change: dict[str, str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "build_ffi.py"],
        env={**os.environ, **change},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    line, end = done.stderr.split("\n")
    assert line.startswith(f"commitfs: {says}; ")
    assert "apt install" in line
    assert "liblz4-dev" in line
    assert end == ""


@pytest.mark.parametrize(
    ("prelude", "says"),
    [
        ("sys.modules['commitfs.native._native'] = None", "not built for this Python"),
        (
            "import commitfs.native._native as built; from types import SimpleNamespace as Fake; "
            "sys.modules['commitfs.native._native'] = "
            "Fake(ffi=built.ffi, lib=Fake(cfs_abi=lambda: built.lib.cfs_abi() + 1)); "
            "del sys.modules['commitfs.native']",
            "built from other sources",
        ),
    ],
    ids=["missing", "other"],
)
def test_a_module_that_does_not_fit_is_refused(prelude: str, says: str) -> None:
    code = f"import sys; {prelude}\ntry: import commitfs.native\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert says in done.stdout
