"""Listing a directory, with exact lookup counts (invariant F2).

F2: the kernel takes one lookup for every entry of a listing it accepted, except "." and "..", and the
vfs is told of exactly those.
"""

from typing import Protocol

import pyfuse3

from commitfs.fuse.convert import entry
from commitfs.vfs.api import Attr


class Listing(Protocol):
    async def readdir(self, fh: int, start: int) -> list[tuple[bytes, Attr, int]]: ...

    def listed(self, ino: int) -> None: ...


async def list_into(vfs: Listing, fh: int, start: int, token: pyfuse3.ReaddirToken) -> None:
    """Hand entries from cookie `start` on to the kernel until its buffer is full or none are left."""
    reply = pyfuse3.readdir_reply
    accepted = False
    while True:
        try:
            batch = await vfs.readdir(fh, start)
        except Exception:
            if not accepted:
                raise
            # An error now would void entries already counted; it comes back with the next request,
            # which starts where this one stopped.
            return
        if not batch:
            return
        for name, attr, start in batch:
            if not reply(token, name, entry(attr), start):
                return
            accepted = True
            if name not in (b".", b".."):
                vfs.listed(attr.ino)
