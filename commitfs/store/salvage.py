"""Reading a store that cannot be opened any more, and finding every commit that is left in it.

Nothing here trusts the slots, the walk or the pointers between records: the whole file is searched.  It
is opened for reading only.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator

from commitfs.errors import CorruptError, FormatError
from commitfs.format.record import COMMIT, LOG_START, RECORD_SIZE, Candidate, Record, WalkState
from commitfs.format.slot import Slot, Unreadable, newest
from commitfs.store.file import StoreFile, open_file
from commitfs.store.recover import Found, number_of, read_slots
from commitfs.store.search import all_records
from commitfs.store.store import Store


def commits_in(store: Store) -> Iterator[Record]:
    """Every commit whose record, or whose copy in a slot, is left: ids ascend, some may be missing.

    A record that does not fit among the others (its id is not above the one before, or there is no room
    for the commits that would lie between) is left out: it is an old one that damage brought to light.
    """
    last: Record | None = None
    for record in _with_slots(store):
        if last is None or 0 < record.id - last.id <= (record.offset - last.offset) // RECORD_SIZE:
            yield record
            last = record


def first_before(store: Store, first: Record) -> int:
    """Id of the commit before the oldest of a store whose first record that is left is `first`: as the slots
    tell it, unless there is no room for so many commits."""
    oldest = int(store.oldest_id)
    fits = 0 < oldest <= first.id <= oldest + (first.offset - LOG_START) // RECORD_SIZE
    return (oldest if fits else first.id) - 1


def _with_slots(store: Store) -> Iterator[Record]:
    """Records of commits and heads of slots, by their offsets."""
    heads = {
        slot.head.offset: slot.head
        for slot in read_slots(store.file)
        if isinstance(slot, Slot) and slot.head is not None and slot.store == store.store_number
    }
    waiting = [heads[offset] for offset in sorted(heads, reverse=True)]
    for found in all_records(store.read, store.file_bytes, store.store_number):
        while waiting and waiting[-1].offset < found.offset:
            yield waiting.pop()
        if found.kind == COMMIT:
            if waiting and waiting[-1].offset == found.offset:
                waiting.pop()
            yield Record._make(found)
    yield from reversed(waiting)


def open_damaged(
    path: str | os.PathLike[str], *, opener: Callable[[str, bool], StoreFile] = open_file
) -> Store:
    """Open a store for reading whatever has happened to its slots, its end and the beginning of its log.

    Its head is the newest commit found, its published end where the last record says it ends.  Takes time
    for each record, and for each byte behind damage.  UsageError: missing, a directory.  FormatError: of a
    newer format, or no commit is left in it.
    """
    path = os.fspath(path)
    file = opener(path, False)
    try:
        slots = read_slots(file)
        if Unreadable.NEWER in slots or slots == [Unreadable.UNKNOWN] * 2:
            raise FormatError(f"{path} is of a newer format: it takes a newer version of commitfs")
        return Store(path, file, _found(path, file, slots), None, opener, lambda message: None)
    except BaseException:
        file.close()
        raise


def _oldest(first: Candidate) -> tuple[int, int]:
    """Id and offset of a store's oldest commit, the first of those left being `first`."""
    if first.prev and first.id <= (first.offset - LOG_START) // RECORD_SIZE + 1:
        return 1, LOG_START
    return first.id, first.offset


def _found(path: str, file: StoreFile, slots: list[Slot | Unreadable]) -> Found:
    def read(offset: int, length: int) -> bytes:
        try:
            data = file.pread(length, offset)
        except OSError as error:
            raise CorruptError("what the device cannot read", offset) from error
        if len(data) < length:
            raise CorruptError("what should lie in the store, beyond its end,", offset)
        return data

    size = file.size()
    number = number_of(file, slots)
    if not number:
        counts = Counter(found.store for found in all_records(read, size))
        counts.update(slot.store for slot in slots if isinstance(slot, Slot))
        number = max(counts, key=counts.__getitem__, default=0)
    ours = [slot if isinstance(slot, Slot) and slot.store == number else Unreadable.DAMAGED for slot in slots]
    slot = newest(ours)
    last = slot.head if slot is not None else None
    oldest = (0, 0)
    end = LOG_START if last is None else last.end
    for found in all_records(read, size, number):
        end = max(end, found.end)
        if found.kind == COMMIT:
            oldest = oldest if oldest[0] else _oldest(found)
            if last is None or found.offset >= last.offset:
                last = Record._make(found)
    if last is None or size < LOG_START:
        raise FormatError(f"{path} has nothing of a store in it")
    if slot is None or not slot.oldest_id:
        uuid = number.to_bytes(8, "little") * 2
        slot = Slot(0, number, uuid, 8 if slot is None else slot.align, *oldest, None)
    state = WalkState.after(last)
    state.offset = end
    return Found(slots, slot, state, last)


__all__ = ["commits_in", "first_before", "open_damaged"]
