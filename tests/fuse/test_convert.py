"""Values cross between the vfs and pyfuse3 unchanged."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pyfuse3
import pytest

from commitfs.fuse import convert
from commitfs.vfs.api import Ctx, Opened, SetAttr, StatFs
from tests.fuse.fake_vfs import ATTR


def test_attributes() -> None:
    out = convert.entry(ATTR)
    names = ("ino", "mode", "nlink", "uid", "gid", "rdev", "size", "blocks")
    assert tuple(getattr(out, f"st_{name}") for name in names) == ATTR[:8]
    assert (out.st_atime_ns, out.st_mtime_ns, out.st_ctime_ns) == ATTR[8:11]
    assert (out.entry_timeout, out.attr_timeout) == (2.5, 1e9)
    assert out.generation == 0


def test_a_name_that_is_missing() -> None:
    out = convert.entry(ATTR._replace(ino=0, entry_valid=4.0))
    assert (out.st_ino, out.entry_timeout) == (0, 4.0)


@pytest.mark.parametrize("time_ns", [0, 1, -1, -(10**18), 999_999_999, 2**62])
def test_times_to_the_nanosecond(time_ns: int) -> None:
    out = convert.entry(ATTR._replace(atime_ns=time_ns, mtime_ns=time_ns, ctime_ns=time_ns))
    assert (out.st_atime_ns, out.st_mtime_ns, out.st_ctime_ns) == (time_ns,) * 3


def test_inode_numbers_of_history_and_endless_timeouts() -> None:
    ino = 0x7FFF_FFFF << 32 | 0xFFFF_FFFF
    out = convert.entry(ATTR._replace(ino=ino, entry_valid=math.inf))
    assert (out.st_ino, out.entry_timeout) == (ino, math.inf)


FIELDS = ("mode", "uid", "gid", "size", "atime", "mtime", "ctime")


@pytest.mark.parametrize("marked", [(), *[(name,) for name in FIELDS], FIELDS])
def test_setattr_takes_only_marked_fields(marked: tuple[str, ...]) -> None:
    given = convert.entry(ATTR)
    fields = SimpleNamespace(**{f"update_{name}": name in marked for name in FIELDS})
    values = (ATTR.mode, ATTR.uid, ATTR.gid, ATTR.size, ATTR.atime_ns, ATTR.mtime_ns, ATTR.ctime_ns)
    wanted = [value if name in marked else None for name, value in zip(FIELDS, values, strict=True)]
    assert convert.changes(given, cast(Any, fields)) == SetAttr(*wanted)


def test_who_asks() -> None:
    ctx = SimpleNamespace(uid=1, gid=2, pid=3, umask=0o27)
    assert convert.asker(cast(Any, ctx)) == Ctx(1, 2, 3, 0o27)


@pytest.mark.parametrize(("direct_io", "keep_cache"), [(True, False), (False, True), (False, False)])
def test_open_handles(direct_io: bool, keep_cache: bool) -> None:
    info = convert.file_info(Opened(2**40, direct_io, keep_cache))
    assert (info.fh, info.direct_io, info.keep_cache) == (2**40, direct_io, keep_cache)


def test_statfs() -> None:
    out = convert.statvfs(StatFs(*range(1, 10)))
    assert isinstance(out, pyfuse3.StatvfsData)
    state = out.__getstate__()
    names = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "namemax")
    assert [state[f"f_{name}"] for name in names] == list(range(1, 10))
