"""Cases 20 to 26 (docs/testing.md): modes, owners, times, xattrs, sizes, statfs."""

import os
import stat
from pathlib import Path

import pytest

from tests.mounted.conftest import Mounts
from tests.support.acts import Act, outcome
from tests.support.mounted import NO_TIMER, NOBODY, Mount
from tests.support.trees import differences, entry, only_file_times, tree

pytestmark = pytest.mark.mounted

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
MODES = [0o600, 0o711, 0o4755, 0o2755, 0o1777, 0o000]


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_case_20_install_and_cp_set_the_mode(fs: Mount, plain: Path) -> None:
    (plain / "x").write_text("x")
    before = fs.n()
    fs.sh("install -m 640 $P/x a; cp -p a b", P=plain)
    for view, root in fs.views():
        assert (permissions(root / "a"), permissions(root / "b")) == (0o640, 0o640), view
    assert fs.n() == before + 2


def test_case_21_cp_keeps_nanoseconds(fs: Mount, plain: Path) -> None:
    moment = 978_307_201_123_456_789
    (plain / "x").write_text("x")
    os.utime(plain / "x", ns=(moment, moment))
    fs.sh("cp -p $P/x f; mkdir d; touch -r $P/x d; cp -p f g; ln -s f l; touch -h -r f l", P=plain)
    for view, root in fs.views():
        for name in ("f", "g", "d", "l"):
            assert (root / name).lstat().st_mtime_ns == moment, (view, name)


def test_times_before_1970_and_after_2038(fs: Mount) -> None:
    moments = [-2_000_000_000_999_999_999, -1, 0, 1, 5_000_000_000_000_000_001]
    for number, moment in enumerate(moments):
        (fs / f"f{number}").touch()
        os.utime(fs / f"f{number}", ns=(moment, moment))
    for view, root in fs.views():
        assert [(root / f"f{i}").stat().st_mtime_ns for i in range(len(moments))] == moments, view


def test_case_22_every_mode_is_kept(fs: Mount) -> None:
    for mode in MODES:
        (fs / f"f{mode:o}").write_text("contents")
        os.chmod(fs / f"f{mode:o}", mode)
        (fs / f"d{mode:o}").mkdir()
        os.chmod(fs / f"d{mode:o}", mode)
    for view, root in fs.views():
        for mode in MODES:
            assert permissions(root / f"f{mode:o}") == mode, view
            assert permissions(root / f"d{mode:o}") == mode, view


@needs_root
@pytest.mark.parametrize(
    "act", ["echo x >> f", "exec 3<>f; echo x >&3", "truncate -s 1 f", ": > f", "truncate -s 100 f"]
)
def test_case_22_a_write_by_another_user_clears_setuid(mounts: Mounts, plain: Path, act: str) -> None:
    fs = mounts(NO_TIMER, "allow_other")
    plain.chmod(0o777)
    for root in (plain, fs.path):
        (root / "f").write_text("contents")
        os.chmod(root / "f", 0o6777)
        fs.sh(act, shell="dash", user=NOBODY, cwd=root)
    assert permissions(plain / "f") == 0o777
    for view, root in fs.views():
        assert permissions(root / "f") == 0o777, view


@needs_root
def test_case_22_chown_clears_setuid(fs: Mount, plain: Path) -> None:
    for root in (plain, fs.path):
        (root / "f").write_text("contents")
        os.chmod(root / "f", 0o6755)
        os.chown(root / "f", 7, 8)
    for view, root in fs.views():
        assert permissions(root / "f") == permissions(plain / "f") == 0o755, view
        assert ((root / "f").stat().st_uid, (root / "f").stat().st_gid) == (7, 8), view


def test_case_23_umask(fs: Mount) -> None:
    fs.sh("umask 027; mkdir d; echo x > f; mkfifo p; ln -s f l; umask 0; mkdir e; echo x > g")
    for view, root in fs.views():
        found = {name: permissions(root / name) for name in ("d", "f", "p", "l", "e", "g")}
        assert found == {"d": 0o750, "f": 0o640, "p": 0o640, "l": 0o777, "e": 0o777, "g": 0o666}, view


@needs_root
def test_case_23_a_set_gid_directory_hands_on_its_group(fs: Mount, plain: Path) -> None:
    for root in (plain, fs.path):
        (root / "d").mkdir()
        os.chown(root / "d", -1, 1234)
        os.chmod(root / "d", 0o2775)
        fs.sh("umask 022; mkdir d/sub; echo x > d/f; ln -s f d/l; mkfifo d/p; mkdir d/sub/sub", cwd=root)
    wanted = {path: (e.mode, e.uid, e.gid) for path, e in tree(plain).items()}
    assert wanted["d/sub/sub"][2] == 1234
    for view, root in fs.views():
        assert {path: (e.mode, e.uid, e.gid) for path, e in tree(root).items()} == wanted, view


@needs_root
def test_other_users_get_what_the_modes_give_them(mounts: Mounts, plain: Path) -> None:
    fs = mounts(NO_TIMER, "allow_other")
    script = """
        mkdir own; echo mine > own/f; cat secret; cat open; echo x >> open; echo x > shared/new
        rm -f shared/roots; mv shared/new shared/newer; chmod 777 open; ls private; touch private/x
        touch -d 2001-01-01 open; ln open hard; stat -c '%U %a' own/f shared/newer; id -u
    """
    printed = []
    for root in (plain, fs.path):
        for name, mode in (("secret", 0o600), ("open", 0o644)):
            (root / name).write_text(f"{name}\n")
            os.chmod(root / name, mode)
        for name, mode in (("shared", 0o1777), ("private", 0o700)):
            (root / name).mkdir()
            os.chmod(root / name, mode)
        (root / "shared/roots").write_text("root's")
        os.chmod(root, 0o777)
        printed.append(fs.sh(f"exec 2>&1; umask 022; {script}", shell="dash", user=NOBODY, cwd=root))
    assert printed[0] == printed[1]
    wanted = {path: (e.mode, e.uid, e.gid, e.contents) for path, e in tree(plain).items()}
    assert wanted["own/f"][1] == NOBODY
    for view, root in fs.views():
        assert {path: (e.mode, e.uid, e.gid, e.contents) for path, e in tree(root).items()} == wanted, view


@needs_root
def test_modes_of_history_are_those_of_then(mounts: Mounts) -> None:
    """P5: a file that was secret stays so in the commits of that time."""
    fs = mounts(NO_TIMER, "allow_other")
    os.chmod(fs.path, 0o755)
    (fs / "f").write_text("secret\n")
    os.chmod(fs / "f", 0o600)
    then = fs.latest()
    os.chmod(fs / "f", 0o644)
    reads = f"cat f; cat .commits/{then:08}/f .commits/latest/f 2>&1; echo x 2>&1 >> .commits/latest/f; true"
    printed = fs.sh(reads, shell="dash", user=NOBODY)
    assert printed.count("secret\n") == 2
    assert f"cat: .commits/{then:08}/f: Permission denied" in printed


def test_case_24_xattrs(fs: Mount) -> None:
    (fs / "f").write_text("f")
    (fs / "d").mkdir()
    acts: list[tuple[Act, str]] = [
        (lambda: os.getxattr(fs / "f", "user.none"), "ENODATA"),
        (lambda: os.removexattr(fs / "f", "user.none"), "ENODATA"),
        (lambda: os.setxattr(fs / "f", "user.a", b"1", os.XATTR_REPLACE), "ENODATA"),
        (lambda: os.setxattr(fs / "f", "user.a", b"1", os.XATTR_CREATE), "ok"),
        (lambda: os.setxattr(fs / "f", "user.a", b"2", os.XATTR_CREATE), "EEXIST"),
        (lambda: os.setxattr(fs / "f", "user.a", b"3", os.XATTR_REPLACE), "ok"),
        (lambda: os.setxattr(fs / "f", "user.empty", b""), "ok"),
        (lambda: os.setxattr(fs / "f", "user.large", b"v" * 60_000), "ok"),
        (lambda: os.setxattr(fs / "f", "user.gone", b"x"), "ok"),
        (lambda: os.removexattr(fs / "f", "user.gone"), "ok"),
        (lambda: os.setxattr(fs / "d", "user.on a directory", b"\0\xff"), "ok"),
        (lambda: os.getxattr(fs / "f", "system.posix_acl_access"), "ENOTSUP"),
    ]
    for number, (act, expected) in enumerate(acts):
        result = outcome(act)
        if expected == "ENOTSUP":  # or real ACLs, where there is just none yet
            assert result in ("ENOTSUP", "ENODATA"), number
        else:
            assert result == expected, number
    for view, root in fs.views():
        expected_f = (("user.a", b"3"), ("user.empty", b""), ("user.large", b"v" * 60_000))
        assert entry(root / "f").xattrs == expected_f, view
        assert entry(root / "d").xattrs == (("user.on a directory", b"\0\xff"),), view
    assert "user.a=" in fs.sh("getfattr -d f")
    assert fs.sh("getfattr -n user.none f || echo none", check=False) == "none\n"


def test_case_25_sizes_and_blocks(fs: Mount) -> None:
    os.symlink("x" * 77, fs / "link")
    os.symlink(b"\xff\xfe", os.fsencode(fs / "bytes"))
    (fs / "empty").touch()
    (fs / "full").write_bytes(os.urandom(10_000))
    for view, root in fs.views():
        assert (root / "link").lstat().st_size == 77, view
        assert os.readlink(os.fsencode(root / "bytes")) == b"\xff\xfe", view
        assert (root / "empty").stat().st_blocks == 0, view
        assert (root / "full").stat().st_blocks >= 20, view


def test_case_26_statfs_tells_of_the_disk_below(fs: Mount) -> None:
    below, here = os.statvfs(fs.store), os.statvfs(fs.path)
    assert here.f_blocks * here.f_frsize == below.f_blocks * below.f_frsize
    assert (
        abs(here.f_bavail * here.f_frsize - below.f_bavail * below.f_frsize)
        < below.f_blocks * below.f_frsize / 20
    )
    assert here.f_files > 0
    assert here.f_ffree > 0
    assert here.f_namemax == 255
    assert fs.sh("df . | wc -l; stat -f -c %c . ").split()[0] == "2"


@needs_root
def test_special_files(fs: Mount, plain: Path) -> None:
    for root in (plain, fs.path):
        os.mknod(root / "char", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.mknod(root / "block", stat.S_IFBLK | 0o600, os.makedev(300, 70_000))
        os.mknod(root / "socket", stat.S_IFSOCK | 0o600)
        os.mkfifo(root / "fifo", 0o600)
    for view, root in fs.views():
        for name in ("char", "block", "socket", "fifo"):
            found, wanted = (root / name).lstat(), (plain / name).lstat()
            assert (found.st_mode, found.st_rdev) == (wanted.st_mode, wanted.st_rdev), (view, name)


def test_times_move_as_on_disk(fs: Mount, plain: Path) -> None:
    """Which of mtime and ctime each act moves, for what it changes and for the folders around."""
    acts = [
        "echo x >> d/f",
        ": > d/f",
        "chmod 600 d/f",
        "mv d/f d/g",
        "ln d/g d/f",
        "rm d/g",
        "mv d/f e/f",
        "mv e/f d/f",
        "mkdir d/sub",
        "rmdir d/sub",
        "truncate -s 5 d/f",
        "truncate -s 5 d/f",
        "touch -a d/f",
        "cat d/f",
        "setfattr -n user.a -v 1 d/f",
        "ln -s x d/l",
        "mv e d/e",
        "mv d/e e",
    ]

    def stamps(root: Path) -> dict[str, tuple[int, int]]:
        return {
            name: ((root / name).stat().st_mtime_ns, (root / name).stat().st_ctime_ns)
            for name in (".", "d", "e", "d/f", "e/f")
            if (root / name).exists()
        }

    moved: list[list[tuple[str, dict[str, tuple[bool, bool]]]]] = []
    for root in (plain, fs.path):
        fs.sh("mkdir d e; echo contents > d/f", cwd=root)
        moved.append([])
        for act in acts:
            old = stamps(root)
            fs.sh(f"sleep 0.01; {act}", cwd=root)
            new = stamps(root)
            changes = {
                name: (new[name][0] != old[name][0], new[name][1] != old[name][1])
                for name in old
                if name in new
            }
            moved[-1].append((act, changes))
    for on_disk, mounted in zip(*moved, strict=True):
        assert mounted == on_disk


def test_everything_at_once_through_rsync(fs: Mount, plain: Path) -> None:
    source = plain / "source"
    source.mkdir()
    fs.sh(
        """
        mkdir -p a/b "c d"; echo 1 > a/f; ln a/f a/b/g; ln -s ../a/f "c d/l"; mkfifo a/p; : > empty
        chmod 751 a; chmod 600 a/f; touch -d '2001-02-03 04:05:06.789012345' a/f a/b "c d"
        setfattr -n user.x -v y a/f; truncate -s 1M sparse; echo end >> sparse
        """,
        cwd=source,
    )
    fs.sh("rsync -aHX $P/source/ $M/copy/", P=plain)
    wanted = only_file_times(tree(source))
    for view, root in fs.views():
        assert differences(only_file_times(tree(root / "copy")), wanted) == [], view
        assert fs.sh("rsync -aOHXcni --delete $P/source/ copy/", cwd=root, P=plain) == "", view
