"""Reading the kernel's table of mounts."""

from pathlib import Path

import pytest

from commitfs.daemon import mountinfo
from commitfs.daemon.mountinfo import Mount, mounted_at, mounted_over, parse

LINES = [
    rb"22 27 0:21 / /proc rw,nosuid shared:12 - proc proc rw",
    rb"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
    rb"42 27 0:39 / /mnt/c rw,nosuid,nodev shared:2 master:3 - fuse.commitfs /tmp/a\040b\134\012,c.db"
    rb" rw,user_id=1000,group_id=1000,default_permissions",
    rb"43 27 0:40 / /mnt/c/deep\011er ro,relatime - fuse.commitfs /s.db rw,user_id=0,group_id=0",
    b"44 42 0:41 / /mnt/c rw - tmpfs \xff rw",
    rb"45 27 0:42 / /mnt/kernel-ro rw - fuse.commitfs /s.db ro,user_id=0",
    rb"garbage",
    rb"46 27 0:43 /",
]
TEXT = b"\n".join([*LINES, b""])


@pytest.fixture(autouse=True)
def _table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_bytes(TEXT)
    monkeypatch.setattr(mountinfo, "MOUNTINFO", str(tmp_path / "mountinfo"))


def test_fields() -> None:
    found = parse(TEXT)
    assert len(found) == 6, "lines that are none are passed over"
    assert found[2] == Mount("0:39", b"/mnt/c", False, "fuse.commitfs", b"/tmp/a b\\\n,c.db", 1000)
    assert found[3] == Mount("0:40", b"/mnt/c/deep\ter", True, "fuse.commitfs", b"/s.db", 0)
    assert found[4].source == b"\xff"
    assert found[5].read_only, "said of the file system rather than the mount"


def test_the_topmost_mount_of_a_place() -> None:
    top = mounted_at(b"/mnt/c")
    assert top is not None
    assert top.fstype == "tmpfs"
    assert mounted_at(b"/mnt") is None


@pytest.mark.parametrize(
    ("path", "device"),
    [
        (b"/mnt/c", "0:41"),
        (b"/mnt/c/x/y", "0:41"),
        (b"/mnt/cc", "254:0"),
        (b"/mnt/c/deep\ter/x", "0:40"),
        (b"/", "254:0"),
        (b"/proc/1", "0:21"),
    ],
)
def test_the_mount_a_path_lies_in(path: bytes, device: str) -> None:
    found = mounted_over(path)
    assert found is not None
    assert found.device == device


def test_the_real_table() -> None:
    with open("/proc/self/mountinfo", "rb") as file:
        found = parse(file.read())
    assert any(mount.point == b"/" for mount in found)
