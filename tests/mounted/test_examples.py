"""What examples/, mount-scripts/try and the README promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mounted import ROOT, Mount, commitfs, environment

PYTHON = f"{sys.executable} -m commitfs"


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        command, env=environment(variables), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_store_only(tmp_path: Path) -> None:
    printed = run(sys.executable, ROOT / "examples/store_only.py", tmp_path / "s.db")
    assert printed == "1 b'red'\n2 b'green'\n3 b'blue'\n"


@pytest.mark.mounted
def test_browse_history(fs: Mount) -> None:
    fs.sh("mkdir d; echo 1 > d/f; echo 22 > d/f; echo other > g; rm d/f; ls .commits/")
    printed = run(sys.executable, ROOT / "examples/browse_history.py", fs.store, "d/f")
    lines = printed.splitlines()
    assert [re.sub(r"^\d{8} \S+ \S+ ", "", line) for line in lines] == [
        "2 bytes by bash",
        "3 bytes by bash",
        "gone by rm",
    ]


@pytest.mark.mounted
def test_backup(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "d").mkdir(parents=True)
    (folder / "d/f").write_text("one\n")
    (folder / "goes").write_text("goes\n")
    first = run(ROOT / "examples/backup.sh", folder, tmp_path / "s.db", COMMITFS=PYTHON).strip()
    (folder / "d/f").write_text("two\n")
    (folder / "goes").unlink()
    second = run(ROOT / "examples/backup.sh", folder, tmp_path / "s.db", COMMITFS=PYTHON).strip()
    assert int(second) > int(first)
    wanted = {(first, "d/f"): "one\n", (first, "goes"): "goes\n", (second, "d/f"): "two\n"}
    for (commit, path), contents in wanted.items():
        assert commitfs("cat", tmp_path / "s.db", commit, path).stdout == contents
    assert commitfs("cat", tmp_path / "s.db", second, "goes").returncode != 0


@pytest.mark.mounted
def test_try(tmp_path: Path) -> None:
    """Ends with a mounted store, three commits listed and the first version read back."""
    printed = run(ROOT / "mount-scripts/try", COMMITFS_PYTHON=sys.executable, TMPDIR=str(tmp_path))
    found = re.search(r"(\S+/mnt): save something there", printed)
    assert found is not None, printed
    mountpoint = Path(found[1])
    try:
        assert os.path.ismount(mountpoint)
        assert printed.count("poem.txt\n") >= 5
        assert re.search(r"\$ cat \.commits/\d+/poem\.txt\nRoses are red,\n", printed)
        assert "> Every save is kept.\n" in printed
        (mountpoint / "more").write_text("more")
    finally:
        done = commitfs("umount", mountpoint)
        if done.returncode != 0:
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)
    assert done.returncode == 0, done.stderr
