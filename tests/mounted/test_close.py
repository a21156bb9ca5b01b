"""Cases 1 to 6 and 9 (docs/testing.md): close is commit (P1), commit points (P2), looking never lags (P4)."""

import itertools
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounted.conftest import Mounts
from tests.support.mounted import NO_TIMER, Mount

pytestmark = pytest.mark.mounted

SHELLS = ["bash", "dash"]


@pytest.mark.parametrize("shell", SHELLS)
def test_case_1_two_saves_by_a_shell_are_two_commits(fs: Mount, shell: str) -> None:
    before = fs.n()
    fs.sh("echo 1 > $M/f; echo 22 > $M/f", shell=shell)
    assert [contents for _, contents in fs.each_commit("f", before)] == [b"1\n", b"22\n"]
    for view, root in fs.views():
        assert (root / "f").read_bytes() == b"22\n", view


@pytest.mark.parametrize("shell", SHELLS)
def test_case_1_cat_into_a_file(fs: Mount, shell: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 300_000)
    before = fs.n()
    fs.sh("cat $X > $M/f; cat $X $X > $M/f", shell=shell, X=tmp_path / "x")
    assert [len(c or b"") for _, c in fs.each_commit("f", before)] == [300_000, 600_000]


@pytest.mark.parametrize("shell", SHELLS)
def test_case_1_every_child_that_ends_commits(fs: Mount, shell: str) -> None:
    """P1: each child that inherits the descriptor closes it when it ends."""
    before = fs.n()
    fs.sh("{ echo a; /bin/true; echo b; } > $M/f", shell=shell)
    assert [c for _, c in fs.each_commit("f", before)] == [b"a\n", b"a\nb\n"]


def test_case_1_a_killed_process_closes_too(fs: Mount) -> None:
    before = fs.n()
    fs.sh("exec > $M/f; echo a; kill -9 $$", check=False)
    assert [c for _, c in fs.each_commit("f", before)] == [b"a\n"]


def test_case_2_500_saves_survive_kill_9(fs: Mount) -> None:
    wrong = fs.sh("for i in {1..500}; do echo $i > f$i; [ $(cat f$i) = $i ] || echo $i; done")
    fs.kill9()
    assert wrong == ""
    fs.start()
    for root in (fs.path, fs.newest()):
        kept = {name: (root / name).read_text() for name in os.listdir(root)}
        assert kept == {f"f{i}": f"{i}\n" for i in range(1, 501)}


def test_case_3_cp_of_1500_small_files(fs: Mount, plain: Path) -> None:
    for number in range(1500):
        folder = plain / "tree" / f"d{number % 15}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}").write_bytes(b"%d " % number * (number % 200))
    fs.sh("cp -r $P/tree $M/tree", P=plain)
    sums = fs.sh("find tree -type f -exec md5sum {} +", cwd=plain)
    (plain / "sums").write_text(sums)
    assert len(sums.splitlines()) == 1500
    for view, root in fs.views():
        checked = fs.sh("md5sum -c $P/sums", cwd=root, P=plain)
        assert checked.count(": OK\n") == 1500, view


@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC, os.O_WRONLY, os.O_RDWR])
def test_case_4_anothers_commit_has_the_old_contents(fs: Mount, flags: int) -> None:
    """P2: no other file's commit holds a half-written file in place of a good one."""
    old = b"old " * 50_000
    (fs / "first").write_bytes(old)
    before = fs.latest()
    fd = os.open(fs / "first", flags)
    os.write(fd, b"new " * 10_000)
    (fs / "second").write_bytes(b"another file")
    [(commit_id, contents)] = fs.each_commit("first", before)
    assert contents == old
    assert (fs.commit(commit_id) / "first").stat().st_size == len(old)
    assert (fs.commit(commit_id) / "second").read_bytes() == b"another file"
    assert (fs / "first").read_bytes()[:40_000] == b"new " * 10_000
    os.write(fd, b"new " * 40_000)
    os.close(fd)
    for view, root in fs.views():
        assert (root / "first").read_bytes() == b"new " * 50_000, view


def test_case_4_a_reader_that_closes_is_no_commit_point(fs: Mount) -> None:
    (fs / "f").write_bytes(b"old")
    before = fs.n()
    with open(fs / "f", "wb", buffering=0) as writer:
        writer.write(b"ne")
        assert (fs / "f").read_bytes() == b"ne"
        assert fs.n() == before
        writer.write(b"w")
    assert [c for _, c in fs.each_commit("f", before)] == [b"new"]


def test_case_4_kill_9_leaves_the_old_contents(fs: Mount) -> None:
    (fs / "f").write_bytes(b"old")
    fd = os.open(fs / "f", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"half of the n")
    fs.kill9()
    with pytest.raises(OSError, match=r"not connected|aborted"):
        os.close(fd)
    fs.start()
    assert (fs / "f").read_bytes() == (fs.newest() / "f").read_bytes() == b"old"


@pytest.mark.parametrize("shell", SHELLS)
def test_case_5_what_writes_nothing_commits_nothing(fs: Mount, shell: str) -> None:
    (fs / "f").write_bytes(b"contents")
    before = fs.n()
    fs.sh(":>> $M/f; cat $M/f; touch -a $M/f", shell=shell)
    assert fs.n() == before


@pytest.mark.parametrize("shell", SHELLS)
def test_case_5_a_new_empty_file_is_one_commit(fs: Mount, shell: str) -> None:
    before = fs.n()
    fs.sh(": > $M/g", shell=shell)
    assert [c for _, c in fs.each_commit("g", before)] == [b""]


@pytest.mark.parametrize("shell", SHELLS)
def test_case_5_truncating_by_redirection_is_one_commit(fs: Mount, shell: str) -> None:
    (fs / "f").write_bytes(b"contents")
    before = fs.n()
    fs.sh(": > $M/f", shell=shell)
    assert [c for _, c in fs.each_commit("f", before)] == [b""]


def test_case_5_the_same_bytes_again_are_not_stored_again(fs: Mount) -> None:
    contents = os.urandom(300_000)
    (fs / "f").write_bytes(contents)
    before, end = fs.n(), fs.stats()["published_end"]
    (fs / "f").write_bytes(contents)
    assert [c for _, c in fs.each_commit("f", before)] == [contents]
    assert fs.stats()["published_end"] - end < 20_000


def test_case_6_twenty_quick_saves_are_twenty_commits(fs: Mount) -> None:
    before = fs.latest()
    for number in range(20):
        (fs / "f").write_bytes(b"%d" % number)
    fs.kill9()
    fs.start()
    ids = fs.ids()
    assert len(ids) == len(set(ids))
    assert fs.each_commit("f", before) == [(before + 1 + i, b"%d" % i) for i in range(20)]
    times = [fs.commit(i).stat().st_mtime_ns for i in ids]
    assert times == sorted(times)
    assert (fs / "f").read_bytes() == b"19"


def newest_by_listing(fs: Mount) -> int:
    """What ``ls M/.commits | tail -1`` leads to."""
    last = fs.sh("ls $M/.commits | tail -1").strip()
    return int(os.path.basename(os.path.realpath(fs / ".commits" / last)))


def test_case_9_looking_is_never_behind_a_save(fs: Mount) -> None:
    for number in range(100):
        before = fs.latest()
        (fs / "f").write_bytes(b"%d" % number)
        assert fs.latest() == before + 1
        assert (fs / ".commits/latest/f").read_bytes() == b"%d" % number


def test_case_9_ls_and_readlink_after_each_kind_of_change(fs: Mount) -> None:
    (fs / "f").write_bytes(b"f")
    acts = [
        "echo x > f",
        "mv f g",
        "chmod 600 g",
        ": > e",
        "ln g h",
        "ln -s g s",
        "mkdir d",
        "rm h",
        "rmdir d",
    ]
    for act in acts:
        before = fs.latest()
        fs.sh(act)
        assert newest_by_listing(fs) == before + 1, act
        assert fs.latest() == before + 1, act


def test_case_9_from_a_shell_inside_history(fs: Mount) -> None:
    fs.latest()
    printed = fs.sh(
        "cd $M/.commits; for i in {1..20}; do echo $i > $M/f; cat latest/f; mv $M/f $M/g$i; cat latest/g$i;"
        " chmod 600 $M/g$i; stat -c %a latest/g$i; done"
    )
    assert printed == "".join(f"{i}\n{i}\n600\n" for i in range(1, 21))


def test_case_9_beside_slow_reads(fs: Mount) -> None:
    """A RELEASE waits behind background reads in the kernel's queue; looking waits for it (P4)."""
    (fs / "big").write_bytes(os.urandom(1 << 20) * 24)
    stop = threading.Event()

    def read_without_cache() -> None:
        while not stop.is_set():
            with open(fs / "big", "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while file.read(1 << 20) and not stop.is_set():
                    pass

    readers = [threading.Thread(target=read_without_cache) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(30):
            os.close(os.open(fs / f"empty{number}", os.O_WRONLY | os.O_CREAT, 0o644))
            assert f"empty{number}" in os.listdir(fs / ".commits/latest")
    finally:
        stop.set()
        for reader in readers:
            reader.join()


@pytest.mark.parametrize("sync", [os.fsync, os.fdatasync])
def test_fsync_is_a_commit_point(fs: Mount, sync: Callable[[int], None]) -> None:
    """P2, also for what was written before through a descriptor that stays open."""
    before = fs.n()
    with open(fs / "f", "wb", buffering=0) as file:
        for number in range(3):
            file.write(b"%d" % number)
            sync(file.fileno())
            assert fs.n() == before + number + 1
    assert [c for _, c in fs.each_commit("f", before)] == [b"0", b"01", b"012"]


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_each_synchronous_write_is_a_commit_point(fs: Mount, flag: int) -> None:
    before = fs.n()
    fd = os.open(fs / "f", os.O_WRONLY | os.O_CREAT | flag, 0o644)
    os.write(fd, b"a")
    os.write(fd, b"b")
    assert [c for _, c in fs.each_commit("f", before)] == [b"a", b"ab"]
    os.close(fd)
    assert fs.n() == before + 2


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_a_synchronous_write_is_one_commit_wherever_it_begins(fs: Mount, flag: int) -> None:
    """P6: in no commit is half of it, also where it begins within a page that is not in the cache."""
    pieces = [b"a" * 5000, b"b" * 5000, b"c" * 20_001, b"d" * 1_000_000]
    fd = os.open(fs / "f", os.O_WRONLY | os.O_CREAT | flag, 0o644)
    before = fs.n()
    for piece in pieces:
        os.write(fd, piece)
    os.close(fd)
    sizes = [len(contents or b"") for _, contents in fs.each_commit("f", before)]
    assert sizes == list(itertools.accumulate(map(len, pieces)))


def test_truncate_by_path_is_a_commit_point(fs: Mount) -> None:
    (fs / "f").write_bytes(b"0123456789")
    before = fs.n()
    os.truncate(fs / "f", 4)
    os.truncate(fs / "f", 6)
    assert [c for _, c in fs.each_commit("f", before)] == [b"0123", b"0123\0\0"]


def test_attributes_set_while_contents_are_pending_share_the_commit(fs: Mount) -> None:
    before = fs.n()
    fd = os.open(fs / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"contents")
    os.fchmod(fd, 0o600)
    os.utime(fd, ns=(1, 1_000_000_000_123_456_789))
    os.setxattr(fd, "user.note", b"hello")
    os.close(fd)
    assert fs.n() == before + 1
    found = (fs.newest() / "f").stat()
    assert (found.st_mode & 0o7777, found.st_mtime_ns) == (0o600, 1_000_000_000_123_456_789)
    assert os.getxattr(fs.newest() / "f", "user.note") == b"hello"


def test_mapped_pages_are_committed(fs: Mount) -> None:
    """Dirty pages of a shared map reach the daemon after the last close of the descriptor (P2)."""
    (fs / "f").write_bytes(b"." * 10_000)
    with open(fs / "f", "r+b") as file:
        pages = mmap.mmap(file.fileno(), 0)
    pages[5000:5004] = b"here"
    pages.flush()
    pages.close()
    for view, root in fs.views():
        assert (root / "f").read_bytes() == b"." * 5000 + b"here" + b"." * 4996, view


def test_staged_changes_commit_by_themselves(mounts: Mounts) -> None:
    """P4: after the settle time, without anybody looking; kill -9 tells what was durable."""
    fs = mounts("settle=0.3")
    before = fs.stats()["commits"]
    os.mkdir(fs / "d")
    while fs.stats()["commits"] == before:
        pass
    fs.kill9()
    fs.start()
    assert (fs / "d").is_dir()


def test_settle_0_makes_each_change_durable_at_once(mounts: Mounts) -> None:
    fs = mounts("settle=0")
    before = fs.n()
    os.mkdir(fs / "a")
    os.mkdir(fs / "a/b")
    os.rename(fs / "a/b", fs / "c")
    fs.kill9()
    fs.start()
    assert sorted(os.listdir(fs.path)) == ["a", "c"]
    assert fs.n() == before + 3


def test_fsync_of_a_directory_commits_what_is_staged(fs: Mount) -> None:
    os.mkdir(fs / "a")
    os.rename(fs / "a", fs / "b")
    fd = os.open(fs.path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    fs.kill9()
    fs.start()
    assert os.listdir(fs.path) == ["b"]


def test_concurrent_closes_are_one_commit_each(mounts: Mounts) -> None:
    """Group commit: many savers at once, a commit each, all durable."""
    fs = mounts(NO_TIMER)
    before = fs.latest()
    fs.sh("for w in 1 2 3 4 5 6 7 8; do (for i in {1..25}; do echo $w $i > f$w.$i; done) & done; wait")
    fs.kill9()
    fs.start()
    assert fs.latest() == before + 200
    assert len(os.listdir(fs.path)) == 200
    assert all((fs / f"f{w}.{i}").read_text() == f"{w} {i}\n" for w in range(1, 9) for i in range(1, 26))
