"""Walking along the records of a file (docs/format.md, "Walk")."""

from collections.abc import Iterator
from typing import Final

from commitfs import native
from commitfs.format import record as records
from commitfs.format.record import RECORD_SIZE, Record, WalkState, parse
from commitfs.store.file import StoreFile

WINDOW: Final = 64 << 10
"""Bytes read at a time."""
_LONG: Final = 1 << 20


def each(file: StoreFile, state: WalkState) -> Iterator[Record]:
    """The records of a walk from `state`, which moves."""
    want = RECORD_SIZE
    while want:
        base = state.offset
        asked = max(want, WINDOW)
        window = _read(file, asked, base)
        want, passed = records.walk(window, base, state, native.crc32c)
        yield from passed
        if state.offset == base and len(window) < asked:
            return  # the file ends within the record


def _read(file: StoreFile, length: int, offset: int) -> bytes:
    """A record can claim 4 GiB that the file does not have: memory is taken for what there is only."""
    return file.pread(min(length, max(file.size() - offset, 0)) if length > _LONG else length, offset)


def follow(file: StoreFile, state: WalkState, *, window: int = WINDOW) -> tuple[Record | None, int]:
    """Walk on from `state`, which moves.  The newest commit passed, if any, and the unknown flags of
    the low byte seen on the way."""
    flags = 0
    raw = b""
    want = RECORD_SIZE
    while want:
        base = state.offset
        asked = max(want, window)
        data = _read(file, asked, base)
        result = native.walk(data, base, state)
        flags |= result.unknown_flags
        want = result.need
        if result.commits:
            raw = data[state.commit_offset - base :][:RECORD_SIZE]
        if state.offset == base and len(data) < asked:
            break  # the file ends within the record
    head = parse(raw, native.crc32c)
    return (Record._make(head) if head is not None else None), flags


__all__ = ["WINDOW", "each", "follow"]
