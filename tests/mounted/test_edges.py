"""Corners programs do reach: deep paths, direct I/O, descriptors that outlive their names (P9)."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from tests.mounted.test_names import same_as_on_disk
from tests.support.acts import outcome
from tests.support.mounted import Mount
from tests.support.trees import differences, tree

pytestmark = pytest.mark.mounted


def test_a_path_longer_than_any_call_can_name(fs: Mount) -> None:
    """There are no paths in the daemon: 40 folders of 200 bytes each, live, in history, in the log."""
    name = "n" * 200
    here = os.open(fs.path, os.O_RDONLY)
    for _ in range(40):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    fd = os.open("f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=here)
    os.write(fd, b"deep")
    os.close(fd)
    os.close(here)
    for view, root in fs.views():
        assert fs.sh("find . | wc -l", cwd=root) == "42\n", view
        script = f"for i in {{1..40}}; do cd -P {name} 2>/dev/null || cd {name}; done; cat f"
        assert fs.sh(script, cwd=root) == "deep", view
    changes = [change for line in fs.log() for change in line["changes"]]
    assert "/".join([name] * 40 + ["f"]) in [change["path"].strip("/") for change in changes]
    fs.check()
    fs.sh(f"rm -r {name}")
    assert os.listdir(fs.newest()) == []


def test_direct_io(fs: Mount) -> None:
    """Past the kernel's cache in both directions, and coherent with who does not ask for that."""
    before = fs.n()
    buffer = mmap.mmap(-1, 8192)
    buffer[:] = os.urandom(8192)
    fd = os.open(fs / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    os.write(fd, buffer)
    assert (fs / "f").read_bytes() == buffer[:]
    os.pwrite(fd, buffer, 4096)
    back = mmap.mmap(-1, 12_288)
    assert os.preadv(fd, [back], 0) == 12_288
    assert back[:] == buffer[:4096] + buffer[:]
    os.close(fd)
    assert fs.n() == before + 1
    for view, root in fs.views():
        assert (root / "f").read_bytes() == back[:], view


def test_a_cached_reader_sees_what_a_write_only_handle_wrote(fs: Mount) -> None:
    """Handles opened O_WRONLY may pass the kernel's cache by; readers' pages must not stay behind."""
    (fs / "f").write_bytes(b"a" * 20_000)
    with open(fs / "f", "rb", buffering=0) as reader:
        mapped = mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ)
        assert reader.read() == mapped[:] == b"a" * 20_000
        fd = os.open(fs / "f", os.O_WRONLY)
        os.pwrite(fd, b"b" * 5000, 3000)
        expected = b"a" * 3000 + b"b" * 5000 + b"a" * 12_000
        assert os.pread(reader.fileno(), 20_000, 0) == mapped[:] == expected
        os.ftruncate(fd, 4000)
        assert os.pread(reader.fileno(), 20_000, 0) == expected[:4000]
        os.pwrite(fd, b"c", 10_000)
        assert os.pread(reader.fileno(), 20_000, 0) == expected[:4000] + bytes(6000) + b"c"
        os.close(fd)
        mapped.close()


def test_allocating_and_seeking(fs: Mount) -> None:
    """What FUSE has no handler for here is refused or done by the C library, never half done."""
    fd = os.open(fs / "f", os.O_RDWR | os.O_CREAT, 0o644)
    assert outcome(lambda: os.posix_fallocate(fd, 0, 100_000)) in ("ok", "ENOTSUP")
    os.pwrite(fd, b"x", 200_000)
    assert os.fstat(fd).st_size == 200_001
    assert os.lseek(fd, 0, os.SEEK_DATA) <= 200_000
    assert os.lseek(fd, 0, os.SEEK_HOLE) <= 200_001
    os.close(fd)
    for view, root in fs.views():
        assert (root / "f").read_bytes() == bytes(200_000) + b"x", view


def test_descriptors_outlive_names(fs: Mount) -> None:
    """Everything an open descriptor can do still works when its name and its folder are gone."""
    (fs / "d").mkdir()
    (fs / "d/f").write_bytes(b"contents")
    folder = os.open(fs / "d", os.O_RDONLY)
    fd = os.open(fs / "d/f", os.O_RDWR)
    os.unlink(fs / "d/f")
    os.rmdir(fs / "d")
    os.fchmod(fd, 0o600)
    os.utime(fd, ns=(1, 2))
    os.setxattr(fd, "user.a", b"1")
    os.ftruncate(fd, 4)
    os.pwrite(fd, b"!", 4)
    found = os.fstat(fd)
    assert (found.st_nlink, found.st_size, found.st_mode & 0o7777) == (0, 5, 0o600)
    assert os.pread(fd, 10, 0) == b"cont!"
    assert os.getxattr(fd, "user.a") == b"1"
    assert os.listdir(folder) == []
    with pytest.raises(FileNotFoundError):
        os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    with pytest.raises(FileNotFoundError):
        os.mkdir("new", dir_fd=folder)
    os.close(fd)
    os.close(folder)
    for view, root in fs.views():
        assert os.listdir(root) == [], view
    fs.check()


def test_a_shell_whose_folder_is_removed(fs: Mount) -> None:
    printed = fs.sh(
        "mkdir d; cd d; rmdir ../d; ls -a; echo x > f || echo refused; cd ..; ls 2>&1", check=False
    )
    assert printed == "refused\n" or printed.startswith("refused")


def test_many_open_files(fs: Mount) -> None:
    """Interleaved writes through 300 descriptors: a commit each, at its close, with all its bytes."""
    before = fs.n()
    files = [os.open(fs / f"f{number}", os.O_WRONLY | os.O_CREAT, 0o644) for number in range(300)]
    for part in range(3):
        for number, fd in enumerate(files):
            os.write(fd, b"%d.%d " % (number, part))
    assert fs.n() == before
    for fd in files:
        os.close(fd)
    assert fs.n() == before + 300
    for view, root in fs.views():
        assert [(root / f"f{n}").read_text() for n in range(300)] == [
            f"{n}.0 {n}.1 {n}.2 " for n in range(300)
        ], view


def test_a_tree_removed_is_one_commit(fs: Mount) -> None:
    fs.sh(
        "mkdir -p keep t/{1..20}; for d in t/*; do for f in 1 2 3 4 5 6 7 8 9; do echo $f > $d/$f; done; done"
    )
    full, wanted = fs.latest(), tree(fs.path)
    fs.sh("rm -r t")
    assert fs.latest() == full + 1
    assert os.listdir(fs.newest()) == ["keep"]
    assert differences(tree(fs.commit(full)), wanted) == []


def test_appending_from_several_processes_through_read_write_handles(fs: Mount) -> None:
    script = "exec 3<>$M/f; for i in {1..200}; do echo {}$i >> /dev/fd/3; done"
    fs.sh(f"touch f; ({script.replace('{}', 'a')}) & ({script.replace('{}', 'b')}) & wait")
    lines = (fs.newest() / "f").read_text().splitlines()
    assert sorted(lines) == sorted(f"{who}{i}" for who in "ab" for i in range(1, 201))


def test_limits_as_on_disk(fs: Mount, plain: Path) -> None:
    def seek_far(root: Path) -> None:
        with open(root / "f", "wb") as file:
            os.pwrite(file.fileno(), b"x", (1 << 63) - 1)

    assert same_as_on_disk(fs, plain, seek_far) in ("EFBIG", "EINVAL")
    assert outcome(lambda: os.truncate(fs / "f", (1 << 62))) in ("ok", "EFBIG")
    assert (fs / "f").stat().st_size in (0, 1 << 62)
    assert outcome(lambda: os.setxattr(fs / "f", "user." + "n" * 300, b"")) == errno.errorcode[errno.ERANGE]


def test_listing_a_large_folder_in_parts(fs: Mount) -> None:
    """seekdir to any cookie goes on just behind it, also after the folder has changed."""
    for number in range(3000):
        (fs / f"f{number}").touch()
    script = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_ushort),
                ("type", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]
libc.opendir.restype, libc.readdir.restype = ctypes.c_void_p, ctypes.POINTER(Dirent)
libc.telldir.restype = ctypes.c_long
def rest(stream):
    names = []
    while (found := libc.readdir(ctypes.c_void_p(stream))):
        names.append(found.contents.name)
    return names
stream = libc.opendir(b".")
places = []
while (found := libc.readdir(ctypes.c_void_p(stream))):
    places.append((found.contents.name, libc.telldir(ctypes.c_void_p(stream))))
names = [name for name, _ in places]
os.unlink(names[10])
for at in (0, 1, 2, 11, 1500, 2999, 3001):
    libc.seekdir(ctypes.c_void_p(stream), ctypes.c_long(places[at][1]))
    assert rest(stream) == [name for name in names[at + 1 :] if name != names[10] or at < 0] or at < 10, at
print(len(names), len(set(names)))
"""
    assert fs.sh(f"python3 - <<'END'\n{script}\nEND") == "3002 3002\n"
