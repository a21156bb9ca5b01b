"""Cases 14 to 19 (docs/testing.md): names, renames, unlinking.

What is right is learnt from the disk below where it can be.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounted.conftest import Mounts
from tests.support.acts import EXCHANGE, NOREPLACE, Act, outcome, renameat2
from tests.support.mounted import Mount
from tests.support.trees import tree

pytestmark = pytest.mark.mounted


def same_as_on_disk(fs: Mount, plain: Path, act: Callable[[Path], object]) -> str:
    """Do `act` on the disk below and on the mount; same outcome and names wanted.  Returns the outcome."""
    on_disk = outcome(lambda: act(plain))
    mounted = outcome(lambda: act(fs.path))
    assert mounted == on_disk
    for view, root in (("live", fs.path), ("newest commit", fs.newest())):
        assert shape(root) == shape(plain), view
    return mounted


def shape(root: Path) -> dict[str, tuple[int, int, str]]:
    return {path: (e.mode, e.nlink, e.contents) for path, e in tree(root).items()}


def test_case_14_noreplace(fs: Mount, plain: Path) -> None:
    for root in (plain, fs.path):
        (root / "a").write_text("a")
        (root / "b").write_text("b")
    assert same_as_on_disk(fs, plain, lambda r: renameat2(r / "a", r / "b", NOREPLACE)) == "EEXIST"
    assert same_as_on_disk(fs, plain, lambda r: renameat2(r / "a", r / "c", NOREPLACE)) == "ok"
    fs.sh("mv -n b c; mv -n c d")
    for view, root in fs.views():
        assert {p.name: p.read_text() for p in root.iterdir()} == {"b": "b", "d": "a"}, view


def test_case_14_exchange(fs: Mount, plain: Path) -> None:
    for root in (plain, fs.path):
        (root / "d").mkdir()
        (root / "d/f").write_text("f")
        (root / "a").write_text("a")
    assert same_as_on_disk(fs, plain, lambda r: renameat2(r / "a", r / "d", EXCHANGE)) == "ok"
    assert same_as_on_disk(fs, plain, lambda r: renameat2(r / "a", r / "none", EXCHANGE)) == "ENOENT"
    assert same_as_on_disk(fs, plain, lambda r: renameat2(r / "a", r / "a/x", EXCHANGE)) == "ENOENT"


def test_case_15_renamed_is_there_at_once(fs: Mount) -> None:
    assert fs.sh("echo x > $M/t; mv $M/t $M/r; cat $M/r; ls") == "x\nr\n"
    assert fs.sh("mkdir -p d/e; echo y > d/e/f; mv d g; cat g/e/f; ls") == "y\ng\nr\n"
    for view, root in fs.views():
        assert sorted(tree(root)) == ["g", "g/e", "g/e/f", "r"], view
        assert (root / "g/e/f").read_text() == "y\n", view


def test_case_16_rename_onto_a_directory(fs: Mount, plain: Path) -> None:
    for root in (plain, fs.path):
        for name in ("full", "empty", "source"):
            (root / name).mkdir()
        (root / "full/f").write_text("f")
        (root / "source/s").write_text("s")
        (root / "file").write_text("file")
    assert same_as_on_disk(fs, plain, lambda r: os.rename(r / "source", r / "full")) in (
        "ENOTEMPTY",
        "EEXIST",
    )
    assert same_as_on_disk(fs, plain, lambda r: os.rename(r / "file", r / "empty")) == "EISDIR"
    assert same_as_on_disk(fs, plain, lambda r: os.rename(r / "source", r / "file")) == "ENOTDIR"
    assert same_as_on_disk(fs, plain, lambda r: os.rename(r / "full", r / "full/below")) == "EINVAL"
    assert same_as_on_disk(fs, plain, lambda r: os.rename(r / "source", r / "empty")) == "ok"
    assert same_as_on_disk(fs, plain, lambda r: os.rename(r / "empty", r / "empty")) == "ok"
    for view, root in fs.views():
        assert shape(root) == shape(plain), view


def test_case_17_rmdir_of_a_full_directory(fs: Mount, plain: Path) -> None:
    for root in (plain, fs.path):
        (root / "d").mkdir()
        (root / "d/f").write_text("f")
    before = fs.n()
    assert same_as_on_disk(fs, plain, lambda r: os.rmdir(r / "d")) == "ENOTEMPTY"
    assert same_as_on_disk(fs, plain, lambda r: os.rmdir(r / "d/f")) == "ENOTDIR"
    assert same_as_on_disk(fs, plain, lambda r: os.unlink(r / "d")) in ("EISDIR", "EPERM")
    assert fs.n() == before


def test_case_18_unlinked_while_open(fs: Mount) -> None:
    (fs / "f").write_bytes(b"before")
    with open(fs / "f", "r+b", buffering=0) as file:
        os.unlink(fs / "f")
        unlinked = fs.latest()
        assert os.listdir(fs.path) == os.listdir(fs.newest()) == []
        assert file.read() == b"before"
        file.write(b" and after")
        os.fsync(file.fileno())
        assert os.fstat(file.fileno()).st_nlink == 0
        assert os.pread(file.fileno(), 100, 0) == b"before and after"
    assert fs.latest() == unlinked
    for view, root in fs.views():
        assert os.listdir(root) == [], view


def test_case_18_never_committed_and_unlinked(fs: Mount) -> None:
    """A temporary file that was never closed under its name leaves no trace in any commit."""
    with open(fs / "temporary", "w+b", buffering=0) as file:
        file.write(b"x" * 5000)
        os.unlink(fs / "temporary")
        (fs / "other").write_text("other")
        assert os.pread(file.fileno(), 3, 4997) == b"xxx"
    for commit_id in fs.ids():
        assert set(os.listdir(fs.commit(commit_id))) <= {"other"}
    assert not any("temporary" in change["path"] for line in fs.log() for change in line["changes"])


def test_case_18_replaced_while_open(fs: Mount) -> None:
    (fs / "f").write_text("old")
    (fs / "g").write_text("new")
    with open(fs / "f", encoding="ascii") as file:
        os.rename(fs / "g", fs / "f")
        assert file.read() == "old"
        assert (fs / "f").read_text() == "new"
    for view, root in fs.views():
        assert {p.name: p.read_text() for p in root.iterdir()} == {"f": "new"}, view


ODD_NAMES = [
    b"\xff\xfe broken \xc3",
    b"new\nline",
    b"quote'\"",
    b"back\\slash",
    b" blank ",
    b"-rf",
    b"\xe2\x80\xae",
    b"*",
]


def test_case_19_any_bytes_are_a_name(fs: Mount) -> None:
    m = os.fsencode(fs.path)
    for name in ODD_NAMES:
        with open(m + b"/" + name, "wb") as file:
            file.write(name)
    for view, root in fs.views():
        printed = os.fsencode(fs.sh("find . -type f -print0", cwd=root))
        assert sorted(printed.split(b"\0")) == sorted([b""] + [b"./" + name for name in ODD_NAMES]), view
        for name in ODD_NAMES:
            with open(os.fsencode(root) + b"/" + name, "rb") as file:
                assert file.read() == name, view
    logged = {os.fsencode(change["path"]) for line in fs.log() for change in line["changes"]}
    assert set(ODD_NAMES) <= {path.lstrip(b"/") for path in logged}
    assert fs.process is not None
    assert fs.process.poll() is None


def test_case_19_the_longest_names(fs: Mount, plain: Path) -> None:
    assert same_as_on_disk(fs, plain, lambda r: (r / ("n" * 255)).write_text("x")) == "ok"
    assert same_as_on_disk(fs, plain, lambda r: (r / ("n" * 256)).write_text("x")) == "ENAMETOOLONG"
    assert same_as_on_disk(fs, plain, lambda r: os.mkdir(r / ("d" * 256))) == "ENAMETOOLONG"
    assert same_as_on_disk(fs, plain, lambda r: os.rename(r / ("n" * 255), r / ("m" * 256))) == "ENAMETOOLONG"
    assert same_as_on_disk(fs, plain, lambda r: os.symlink("x" * 4000, r / "link")) == "ok"
    assert same_as_on_disk(fs, plain, lambda r: os.stat(r / ("s" * 256))) == "ENAMETOOLONG"


def test_everyday_refusals_as_on_disk(fs: Mount, plain: Path) -> None:
    for root in (plain, fs.path):
        (root / "f").write_text("f")
        (root / "d").mkdir()
        (root / "loop").symlink_to("loop")
    acts: list[tuple[Callable[[Path], object], str]] = [
        (lambda r: os.mkdir(r / "f"), "EEXIST"),
        (lambda r: os.mkdir(r / "none/d"), "ENOENT"),
        (lambda r: os.mkdir(r / "f/d"), "ENOTDIR"),
        (lambda r: os.open(r / "f", os.O_CREAT | os.O_EXCL), "EEXIST"),
        (lambda r: os.open(r / "d", os.O_WRONLY), "EISDIR"),
        (lambda r: os.open(r / "loop", os.O_RDONLY), "ELOOP"),
        (lambda r: os.symlink("x", r / "f"), "EEXIST"),
        (lambda r: os.link(r / "d", r / "e"), "EPERM"),
        (lambda r: os.link(r / "f", r / "d"), "EEXIST"),
        (lambda r: os.link(r / "f", r / "g"), "ok"),
        (lambda r: os.rename(r / "f", r / "g"), "ok"),
        (lambda r: os.unlink(r / "f"), "ok"),
        (lambda r: os.unlink(r / "none"), "ENOENT"),
        (lambda r: os.rmdir(r / "none"), "ENOENT"),
        (lambda r: os.rmdir(r / "d"), "ok"),
        (lambda r: os.truncate(r / "g", -1), "EINVAL"),
        (lambda r: os.mkfifo(r / "fifo"), "ok"),
        (lambda r: os.readlink(r / "g"), "EINVAL"),
    ]
    for act, expected in acts:
        assert same_as_on_disk(fs, plain, act) == expected


@pytest.mark.parametrize("name", [".commits", ".versions"])
def test_the_two_names_of_history_are_taken(fs: Mount, name: str) -> None:
    """Every operation that makes or takes a name in the root refuses them, as source and as target."""
    (fs / "f").write_text("f")
    (fs / "d").mkdir()
    before = fs.n()
    acts: list[Act] = [
        lambda: os.mkdir(fs / name),
        lambda: (fs / name).write_text("x"),
        lambda: os.symlink("x", fs / name),
        lambda: os.link(fs / "f", fs / name),
        lambda: os.rename(fs / "f", fs / name),
        lambda: os.rename(fs / "d", fs / name),
        lambda: os.rename(fs / name, fs / "g"),
        lambda: renameat2(fs / "d", fs / name, EXCHANGE),
        lambda: renameat2(fs / name, fs / "d", EXCHANGE),
        lambda: os.rmdir(fs / name),
        lambda: os.unlink(fs / name),
        lambda: os.mkfifo(fs / name),
    ]
    assert "ok" not in [outcome(act) for act in acts]
    assert fs.n() == before
    assert sorted(os.listdir(fs.path)) == ["d", "f"]
    (fs / "d" / name).write_text("below the root it is a name like any other")
    assert os.listdir(fs.newest() / "d") == [name]


def test_readdir_while_names_come_and_go(fs: Mount) -> None:
    """Stable cursors: what stays is listed exactly once, whatever else happens meanwhile."""
    for number in range(600):
        (fs / f"stays{number}").touch()
        (fs / f"goes{number}").touch()
    listed: list[str] = []
    with os.scandir(fs.path) as entries:
        for count, found in enumerate(entries):
            listed.append(found.name)
            if count < 600:
                os.unlink(fs / f"goes{599 - count}")
                (fs / f"new{count}").touch()
    stays = [name for name in listed if name.startswith("stays")]
    assert len(stays) == len(set(stays)) == 600
    assert len(listed) == len(set(listed))


def test_hard_links(fs: Mount) -> None:
    (fs / "a").write_text("one")
    (fs / "d").mkdir()
    os.link(fs / "a", fs / "d/b")
    (fs / "d/b").write_text("two")
    os.link(fs / "a", fs / "c")
    os.unlink(fs / "c")
    for view, root in fs.views():
        a, b = (root / "a").stat(), (root / "d/b").stat()
        assert (a.st_ino, a.st_nlink) == (b.st_ino, b.st_nlink), view
        assert a.st_nlink == 2, view
        assert (root / "a").read_text() == "two", view


def test_names_come_back_after_a_remount_with_defaults(mounts: Mounts) -> None:
    fs = mounts()
    fs.sh("mkdir -p a/b/c; ln -s ../x a/l; mkfifo a/p; touch a/b/c/f; mv a/b z; rmdir z/c 2>/dev/null; true")
    expected = ["a", "a/l", "a/p", "z", "z/c", "z/c/f"]
    for view, root in fs.views():
        assert sorted(tree(root)) == expected, view
