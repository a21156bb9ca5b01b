"""Finding records where no pointer leads: the next one behind damage, and all there are in a file."""

from collections.abc import Callable, Iterator
from typing import Final

from commitfs.errors import CorruptError
from commitfs.format.record import LOG_START, MAGIC, RECORD_SIZE, Candidate, parse
from commitfs.native import crc32c
from commitfs.store.index import as_far_as_readable

WINDOW: Final = 1 << 20
"""Bytes looked through at a time."""

Read = Callable[[int, int], bytes]
"""(offset, length) to exactly so many bytes; CorruptError where they cannot be had."""


def next_record(
    read: Read, start: int, size: int, accept: Callable[[Candidate], bool] = lambda found: True
) -> Candidate | None:
    """The first record at or behind `start` that says where it lies and that `accept` takes; None if there
    is none in the `size` bytes of the file."""
    base = start + 7 & ~7
    while base < size:
        window = as_far_as_readable(read, base, min(WINDOW + RECORD_SIZE, size - base))
        place = window.find(MAGIC)
        while 0 <= place < WINDOW:
            if place % 8 == 0:
                found = parse(window, crc32c, place)
                if found is not None and found.offset == base + place and accept(found):
                    return found
            place = window.find(MAGIC, place + 1)
        base += WINDOW
    return None


def all_records(read: Read, size: int, store: int = 0) -> Iterator[Candidate]:
    """Every record of a store in the order of the file, of any kind, whatever lies between them; of any
    store with `store` 0.

    A record leads to the one behind it.  Where none is there all that lies behind the record is searched,
    for it may be one that does not belong there and says that it is long.  So contents of files are
    looked at only beside damage, and there, what a record says of itself has to fit: its offset, its
    store and its checksum.
    """

    def accept(found: Candidate) -> bool:
        return store in (0, found.store)

    found: Candidate | None = None
    start = LOG_START
    while True:
        at = start if found is None else found.end
        after = _record_at(read, at)
        if after is None or not accept(after):
            after = next_record(read, start, size, accept)
        if after is None:
            return
        yield after
        found, start = after, after.offset + RECORD_SIZE


def _record_at(read: Read, offset: int) -> Candidate | None:
    try:
        found = parse(read(offset, RECORD_SIZE), crc32c)
    except CorruptError:
        return None
    return found if found is not None and found.offset == offset else None


__all__ = ["Read", "all_records", "next_record"]
