"""Values of the vfs to values of pyfuse3 and back.  Runs for every request: plain assignments only."""

import pyfuse3

from commitfs.vfs.api import MISSING, Attr, Ctx, Opened, SetAttr, StatFs


def asker(ctx: pyfuse3.RequestContext) -> Ctx:
    return Ctx(ctx.uid, ctx.gid, ctx.pid, ctx.umask)


def entry(attr: Attr) -> pyfuse3.EntryAttributes:
    """The kernel's view of `attr`; with ``ino == 0`` it is a name the kernel may remember as missing.

    pyfuse3 sets a block size of 4096 and a generation of 0 by itself.
    """
    if attr is MISSING:
        return _MISSING
    out = pyfuse3.EntryAttributes()
    (
        out.st_ino,
        out.st_mode,
        out.st_nlink,
        out.st_uid,
        out.st_gid,
        out.st_rdev,
        out.st_size,
        out.st_blocks,
        out.st_atime_ns,
        out.st_mtime_ns,
        out.st_ctime_ns,
        out.entry_timeout,
        out.attr_timeout,
    ) = attr
    return out


_MISSING = entry(Attr(*MISSING))


def changes(attr: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields) -> SetAttr:
    """Only what `fields` marks; the other values of `attr` are undefined."""
    return SetAttr(
        attr.st_mode if fields.update_mode else None,
        attr.st_uid if fields.update_uid else None,
        attr.st_gid if fields.update_gid else None,
        attr.st_size if fields.update_size else None,
        attr.st_atime_ns if fields.update_atime else None,
        attr.st_mtime_ns if fields.update_mtime else None,
        attr.st_ctime_ns if fields.update_ctime else None,
    )


def file_info(opened: Opened) -> pyfuse3.FileInfo:
    fh, direct_io, keep_cache = opened
    return pyfuse3.FileInfo(fh, direct_io, keep_cache)


def statvfs(figures: StatFs) -> pyfuse3.StatvfsData:
    out = pyfuse3.StatvfsData()
    (
        out.f_bsize,
        out.f_frsize,
        out.f_blocks,
        out.f_bfree,
        out.f_bavail,
        out.f_files,
        out.f_ffree,
        out.f_favail,
        out.f_namemax,
    ) = figures
    return out
