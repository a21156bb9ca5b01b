"""Cases 8 and 10 to 13 (docs/testing.md): the right bytes, in every view."""

import os
import threading
import zipfile
from pathlib import Path

import pytest

from tests.support.mounted import Mount

pytestmark = pytest.mark.mounted


def test_case_8_a_large_copy_is_whole_and_memory_stays_bounded(fs: Mount, plain: Path) -> None:
    block = os.urandom(1 << 20)
    with open(plain / "big", "wb") as file:
        file.writelines(number.to_bytes(4, "big") + block[4:] for number in range(160))
    idle = fs.peak_memory()
    before = fs.n()
    fs.sh("cp $P/big $M/big", P=plain)
    assert fs.peak_memory() - idle < 64 << 20
    assert fs.n() == before + 1
    for view, root in fs.views():
        assert fs.sh("cmp $P/big big && echo same", cwd=root, P=plain) == "same\n", view


def test_case_8_a_small_save_beside_a_large_copy(fs: Mount, plain: Path) -> None:
    (plain / "big").write_bytes(os.urandom(1 << 20) * 64)
    before = fs.n()
    copier = threading.Thread(target=fs.sh, args=("cp $P/big $M/big",), kwargs={"P": plain})
    copier.start()
    saves = 0
    while copier.is_alive():
        (fs / "small").write_bytes(b"%d" % saves)
        saves += 1
    copier.join()
    assert fs.n() == before + saves + 1
    contents = [c for _, c in fs.each_commit("small", before) if c is not None]
    assert sorted(set(contents), key=int) == [b"%d" % i for i in range(saves)]
    with open(fs.newest() / "big", "rb") as copy, open(plain / "big", "rb") as original:
        assert copy.read() == original.read()


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_case_10_two_appenders_lose_no_line(fs: Mount, shell: str) -> None:
    loop = "i=0; while [ $i -lt 1000 ]; do echo {}$i >> $M/log; i=$((i+1)); done"
    before = fs.n()
    fs.sh(f"({loop.format('a')}) & ({loop.format('b')}) & wait", shell=shell)
    expected = sorted(f"{who}{i}" for who in "ab" for i in range(1000))
    for view, root in fs.views():
        assert sorted((root / "log").read_text().splitlines()) == expected, view
    assert fs.n() == before + 2000


def test_case_11_a_shorter_file_is_shorter(fs: Mount) -> None:
    (fs / "f").write_bytes(b"x" * 20)
    (fs / "f").write_bytes(b"yz")
    for view, root in fs.views():
        assert (root / "f").stat().st_size == 2, view
        assert (root / "f").read_bytes() == b"yz", view


def test_case_12_copied_moved_touched(fs: Mount, plain: Path) -> None:
    contents = os.urandom(3_000_000)
    (plain / "big").write_bytes(contents)
    fs.sh("cp $P/big $M/a; mv $M/a $M/b; touch -d 2001-01-01 $M/b; chmod 600 $M/b", P=plain)
    for view, root in fs.views():
        assert (root / "b").read_bytes() == contents, view
        found = (root / "b").stat()
        assert fs.sh("stat -c %y b", cwd=root).startswith("2001-01-01 00:00:00.0"), view
        assert found.st_mode & 0o7777 == 0o600, view
        assert not (root / "a").exists(), view


@pytest.mark.parametrize("close_first", [True, False])
def test_case_13_a_renamed_archive_is_never_truncated(fs: Mount, close_first: bool) -> None:
    """P2: a rename of a file with pending contents is a commit point."""
    for generation in range(3):
        with open(fs / "tmp", "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for number in range(20):
                    archive.writestr(f"member{number}", os.urandom(20_000))
            if not close_first:
                file.flush()
                os.rename(fs / "tmp", fs / "final.zip")
        if close_first:
            os.rename(fs / "tmp", fs / "final.zip")
        assert len((fs / "final.zip").read_bytes()) > 400_000, generation
    seen = 0
    for commit_id in fs.ids():
        path = fs.commit(commit_id) / "final.zip"
        if path.exists():
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None
                assert len(archive.namelist()) == 20
            seen += 1
    assert seen >= 3


def test_random_writes_and_truncations_as_on_disk(fs: Mount, plain: Path) -> None:
    """Holes, overlaps and truncations, compared with the disk below after each commit point."""
    acts = [
        (0, 10_000),
        (50_000, 3),
        (4_095, 2),
        (65_536, 70_000),
        (60_000, 20_000),
        (1_000_000, 1),
        (100, 0),
    ]
    for at, length in acts:
        written = os.urandom(length)
        for root in (plain, fs.path):
            fd = os.open(root / "f", os.O_RDWR | os.O_CREAT, 0o644)
            os.pwrite(fd, written, at)
            os.close(fd)
        assert (fs / "f").read_bytes() == (fs.newest() / "f").read_bytes() == (plain / "f").read_bytes()
    for size in (500_000, 66_000, 65_536, 1, 10_000, 0, 12):
        for root in (plain, fs.path):
            os.truncate(root / "f", size)
        assert (fs / "f").read_bytes() == (fs.newest() / "f").read_bytes() == (plain / "f").read_bytes()
    for view, root in fs.views():
        assert (root / "f").read_bytes() == (plain / "f").read_bytes(), view


def test_a_sparse_file_stays_cheap(fs: Mount) -> None:
    end = fs.stats()["published_end"]
    with open(fs / "f", "wb") as file:
        file.seek(1 << 40)
        file.write(b"end")
    for view, root in fs.views():
        found = (root / "f").stat()
        assert found.st_size == (1 << 40) + 3, view
        assert found.st_blocks < 1000, view
        with open(root / "f", "rb") as file:
            assert file.read(10) == bytes(10), view
            file.seek(1 << 40)
            assert file.read() == b"end", view
    assert fs.stats()["published_end"] - end < 100_000


def test_two_processes_see_each_others_writes_at_once(fs: Mount) -> None:
    """The kernel's cache is coherent in the live tree, before any commit point too."""
    with open(fs / "f", "wb", buffering=0) as file:
        for number in range(50):
            file.write(b"%02d" % number)
            assert fs.sh("tail -c 2 f; stat -c ' %s' f") == f"{number:02} {2 * number + 2}\n"
