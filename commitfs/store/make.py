"""Making a store file: it appears under its name whole and durable, or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from commitfs import native
from commitfs.errors import UsageError
from commitfs.format.record import LOG_START
from commitfs.format.slot import ALIGNMENTS, SLOT_OFFSETS, SLOT_SIZE, Slot, pack_slot
from commitfs.store.log import draw_number


@contextmanager
def new_file(path: str) -> Iterator[str]:
    """Gives the name under which to make the file that shall appear at `path`, never over another.

    What was made has to be durable when the body ends; then it is linked into place.  UsageError: `path`
    exists, or its directory does not.
    """
    folder = os.path.dirname(os.path.abspath(path))
    try:
        # A directory of its own, since with more than the name in front of it a name may be too long.
        scratch = tempfile.mkdtemp(prefix=".commitfs-new-", dir=folder)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path} cannot be made: there is no such directory") from None
    fresh = os.path.join(scratch, "store")
    try:
        yield fresh
        try:
            os.link(fresh, path)  # which refuses to replace what is there
        except FileExistsError:
            raise UsageError(f"{path} exists already") from None
    finally:
        # Without a descriptor, since there may be none left: not by listing what is there.
        with suppress(FileNotFoundError):
            os.unlink(fresh)
        os.rmdir(scratch)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def make_file(path: str, image: bytes) -> None:
    """Make the file `path`, mode 0600, with `image` in it.  UsageError as `new_file`."""
    with new_file(path) as fresh:
        write_file(fresh, image)


def write_file(path: str, image: bytes) -> None:
    """The same under a name that nobody else knows, and durable once that is linked."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        native.write_durable(fd, [image], 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def new_image(align: int, *, earlier: bool = False) -> bytes:
    """What a store without commits consists of; `earlier`: one of PURETRE2."""
    if align not in ALIGNMENTS:
        raise UsageError(f"the alignment of a store is one of {ALIGNMENTS}")
    image = bytearray(LOG_START)
    store, uuid = draw_number(), os.urandom(16)
    for sequence, offset in enumerate(SLOT_OFFSETS, 1):
        slot = Slot(sequence, store, uuid, align, 0, 0, None, earlier=earlier)
        image[offset : offset + SLOT_SIZE] = pack_slot(slot, native.crc32c)
    return bytes(image)


__all__ = ["make_file", "new_file", "new_image", "write_file"]
