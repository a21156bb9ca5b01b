"""Finding the newest commit, for readers and for the writer (docs/format.md, "Recovery").

Readers look and change nothing.  A record that does not fit is the end of the log to them, unless a
later one shows that it had been durable: then they go on behind it (S15).  The writer walks what the
device really has, tells a torn end from damage, and clears the end before its first record.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from commitfs import native
from commitfs.errors import CorruptError, FormatError
from commitfs.format import record as records
from commitfs.format.record import (
    COMMIT,
    FIRST,
    FLAGS_UNKNOWN,
    LAST,
    LOG_START,
    PAD,
    RECORD_SIZE,
    Candidate,
    Record,
    WalkState,
    parse,
)
from commitfs.format.slot import (
    RO_COMPAT_KNOWN,
    SLOT_OFFSETS,
    SLOT_SIZE,
    Slot,
    Unreadable,
    newest,
    pack_slot,
    parse_slot,
)
from commitfs.store.file import StoreFile, is_no_room
from commitfs.store.puretre2 import whole
from commitfs.store.tail import Tail
from commitfs.store.walk import each, follow

_SCAN: Final = 1 << 20
_PAGE: Final = 64 << 10
"""Caches are dropped from a multiple of the largest page size on."""
_ZEROS: Final = bytes(_SCAN)

Report = Callable[[str], None]


@dataclass(slots=True)
class Found:
    """What the file is, and where its log ends."""

    slots: list[Slot | Unreadable]
    slot: Slot
    """The newest; made up from the log where both are lost."""
    state: WalkState
    """After the walk: its offset is the published end."""
    head: Record | None
    """The newest commit."""
    damage: str = ""
    """What is damaged; empty: nothing was seen to be."""
    no_writing: str = ""
    """Why a writer must not write here, other than damage."""
    lost_slots: bool = False

    def copies(self) -> dict[int, Record]:
        """Records of which the slots hold a copy, by their offsets."""
        slots = [slot for slot in self.slots if isinstance(slot, Slot) and slot.store == self.slot.store]
        return {slot.head.offset: slot.head for slot in slots if slot.head is not None}


def look(file: StoreFile, path: str, report: Report) -> Found:
    """Find the newest commit; FormatError, CorruptError."""
    found = _start(file, path, report)
    try:
        _walk_on(file, found)
        _go_on_behind_damage(file, found)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        at = found.state.offset
        found.damage = found.damage or f"the device cannot read the log behind offset {at}"
    if found.damage:
        report(f"{path}: {found.damage}: run commitfs check")
    return found


def _go_on_behind_damage(file: StoreFile, found: Found) -> None:
    """For readers, as `_scan` for the writer.  A writer may be at work: what was not there at the walk's
    end may be there now, and then it was no damage."""
    while True:
        beyond = replace(found, state=replace(found.state))
        _scan(file, beyond, file.size())
        if beyond.head is found.head:
            return
        head, _ = follow(file, found.state)
        if head is None:
            found.state, found.head = beyond.state, beyond.head
            found.damage = found.damage or beyond.damage
            return
        found.head = head


def recover(file: StoreFile, path: str, report: Report) -> tuple[Found, Tail]:
    """The same for the writer, with the device's contents; then the end is cleared for its records.

    Where that is refused (`damage`, `no_writing`) the file is untouched.
    """
    file.sync()
    file.drop_cache(0, _PAGE)
    if any(isinstance(slot, Slot) and slot.earlier for slot in read_slots(file)):
        file.drop_cache(0)
    found = _start(file, path, report)
    file.drop_cache(found.state.offset // _PAGE * _PAGE)
    _walk_on(file, found)
    end = found.state.offset
    size = file.size()
    zeros = _scan(file, found, size)
    if found.damage or found.no_writing:
        hint = ": run commitfs check" if found.damage else ""
        report(f"{path} is opened read-only: {found.damage or found.no_writing}{hint}")
        return found, Tail(file, end)
    if size < end + RECORD_SIZE or not zeros or file.holes(end) < size:
        tail = _cut(file, end)
    else:
        tail = Tail(file, size)
    _mend_slots(file, found)
    return found, tail


# -- where the walk starts -----------------------------------------------------------------------


def read_slots(file: StoreFile) -> list[Slot | Unreadable]:
    return [_slot(file, offset) for offset in SLOT_OFFSETS]


def _slot(file: StoreFile, offset: int) -> Slot | Unreadable:
    """A reader makes do with the other slot where the device cannot read one.  A writer does not: it
    would write to what it has not seen."""
    try:
        return parse_slot(file.pread(SLOT_SIZE, offset), native.crc32c)
    except OSError as error:
        if error.errno != errno.EIO or file.writable:
            raise
        return Unreadable.DAMAGED


def _start(file: StoreFile, path: str, report: Report) -> Found:
    if file.size() == 0:
        raise FormatError(f"{path} is empty, not a store")
    slots = read_slots(file)
    number = number_of(file, slots)
    for at, seen in enumerate(slots):
        torn = isinstance(seen, Slot) and seen.earlier and not whole(file, seen)
        if torn or (isinstance(seen, Slot) and number not in (0, seen.store)):
            slots[at] = Unreadable.DAMAGED
    slot = newest(slots)
    if slot is None:
        return _start_without_slots(file, path, report, slots)
    if Unreadable.NEWER in slots:
        raise FormatError(f"{path} is of a newer format: it takes a newer version of commitfs")
    end = slot.head.end if slot.head is not None else LOG_START
    size = file.size()  # after the slots: a writer may be at work
    if size < end:
        raise CorruptError(
            f"{path} is truncated: it has {size} bytes of at least {end}; "
            f"`commitfs salvage {path} NEW` copies what is left into a new store"
        )
    if slot.head is None:
        state = WalkState.at_start(slot.store)
    else:
        state = WalkState.after(slot.head)
    found = Found(slots, slot, state, slot.head)
    if slot.ro_compat & ~RO_COMPAT_KNOWN:
        found.no_writing = "it uses a feature this version of commitfs does not know"
    # The slot's copy is as good as the record, but a record that differs is damage.
    if slot.head_has_record and slot.head is not None:
        expected, _ = records.pack(slot.head, native.crc32c)
        try:
            there = file.pread(RECORD_SIZE, slot.head.offset)
        except OSError as error:
            if error.errno != errno.EIO or file.writable:
                raise
            there = b""
        if there != expected:
            found.damage = f"the record of commit {slot.head.id} at offset {slot.head.offset} is damaged"
    return found


def number_of(file: StoreFile, slots: Sequence[Slot | Unreadable]) -> int:
    """The store number that both slots say, or else the first record; 0 where there is none that can be
    read.  A slot of another store, put there by whatever damaged the file, must not be believed."""
    told = {slot.store for slot in slots if isinstance(slot, Slot)}
    if len(told) == 1 and not any(isinstance(slot, Unreadable) for slot in slots):
        return told.pop()
    try:
        first = parse(file.pread(RECORD_SIZE, LOG_START), native.crc32c)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return 0
    return first.store if first is not None and first.offset == LOG_START else 0


def _start_without_slots(file: StoreFile, path: str, report: Report, slots: list[Slot | Unreadable]) -> Found:
    """Both slots are lost: the log itself says where it starts and whose it is."""
    if Unreadable.NEWER in slots or Unreadable.UNKNOWN in slots:
        raise FormatError(f"{path} is of a newer format: it takes a newer version of commitfs")
    first = parse(file.pread(RECORD_SIZE, LOG_START), native.crc32c)
    if first is None or first.offset != LOG_START or first.chain or not first.flags & FIRST:
        if Unreadable.DAMAGED in slots:
            raise CorruptError(
                f"{path}: both head slots and the beginning of the log are damaged; "
                f"`commitfs salvage {path} NEW` copies what is left into a new store"
            )
        raise FormatError(f"{path} is not a store of commitfs")
    report(f"{path}: both head slots are damaged; reading the log from its start")
    state = WalkState.at_start(first.store)
    state.commit_id = first.id - (first.kind == COMMIT)
    oldest = (0, 0)
    align = 8
    for record in each(file, replace(state)):
        if record.kind == COMMIT and not oldest[0]:
            oldest = (record.id, record.offset)
        elif record.kind == PAD:
            align = record.branch
        if oldest[0] and record.flags & LAST:
            break
    slot = Slot(
        sequence=0,
        store=first.store,
        uuid=first.store.to_bytes(8, "little") * 2,
        align=align,
        oldest_id=oldest[0],
        oldest_offset=oldest[1],
        head=None,
    )
    return Found(slots, slot, state, None, lost_slots=True)


# -- the walk ------------------------------------------------------------------------------------


def _walk_on(file: StoreFile, found: Found) -> None:
    if found.slot.align > 8 and file.writable:
        _to_group_end(file, found)
        return
    head, flags = follow(file, found.state)
    found.head = head or found.head
    if flags:
        found.no_writing = "it has records of a newer version of commitfs"


def _to_group_end(file: StoreFile, found: Found) -> None:
    """On a medium that wants aligned groups the writer's walk ends with the last whole group: the whole
    records of a torn one were not acknowledged, and the next group must not share a sector with them."""
    step = replace(found.state)
    head = found.head
    for record in each(file, replace(found.state)):
        step.step(record)
        if record.kind == COMMIT:
            head = record
        if record.flags & FLAGS_UNKNOWN:
            found.no_writing = "it has records of a newer version of commitfs"
        if record.flags & LAST:
            found.state, found.head = replace(step), head


# -- what lies behind the end --------------------------------------------------------------------


def _scan(file: StoreFile, found: Found, size: int) -> bool:
    """Whether only zeros follow the walk's end.

    A whole record further on whose `synced` passes the end was written when all below was durable: the
    end is damage then, not a torn write.  The walk goes on from there, to hide no more than need be,
    but nothing may be written.
    """
    at = found.state.offset
    zeros = True
    while at < size:
        window = file.pread(min(_SCAN, size - at), at)
        if not window:
            break
        if window == _ZEROS[: len(window)]:
            at += len(window)
            continue
        zeros = False
        survivor = _survivor(window, at, found.state)
        if survivor is None:
            at += max(len(window) - RECORD_SIZE + 8, 8) if at + len(window) < size else len(window)
            continue
        found.damage = found.damage or (
            f"the log is damaged at offset {found.state.offset}, after commit {found.state.commit_id}"
        )
        beyond = WalkState(
            survivor.offset,
            survivor.store,
            survivor.session,
            survivor.chain,
            survivor.id - (survivor.kind == COMMIT),
            0,
        )
        head, _ = follow(file, beyond)
        if head is not None:
            found.state, found.head = beyond, head
        at = max(beyond.offset, survivor.offset + RECORD_SIZE)
    return zeros


def _survivor(window: bytes, base: int, state: WalkState) -> Candidate | None:
    at = window.find(records.MAGIC)
    while at >= 0:
        if not (base + at) % 8:
            seen = parse(window, native.crc32c, at)
            if (
                seen is not None
                and seen.store == state.store
                and seen.offset == base + at
                and seen.synced > state.offset
            ):
                return seen
        at = window.find(records.MAGIC, at + 1)
    return None


def _cut(file: StoreFile, end: int) -> Tail:
    """End the file at the published end and lay new zeros.  A crash in here is harmless: nothing below
    the end is touched."""
    file.truncate(end)
    tail = Tail(file, end)
    try:
        tail.extend(end)
    except OSError as error:
        if not is_no_room(error):
            raise
    file.sync()
    return tail


def _mend_slots(file: StoreFile, found: Found) -> None:
    """Write both slots, one sync each, where both are lost or one is of the earlier format: an earlier
    program must not find a slot it would continue.  The older goes first."""
    earlier = any(isinstance(slot, Slot) and slot.earlier for slot in found.slots)
    if not earlier and not found.lost_slots:
        return
    slot = found.slot
    oldest_id, oldest_offset = slot.oldest_id, slot.oldest_offset
    if found.head is not None and not found.head.session:
        oldest_id, oldest_offset = found.head.id + 1, found.head.end
    older = [at for at in (0, 1) if found.slots[at] is not slot][:1] or [0]
    for at in (older[0], 1 - older[0]):
        slot = Slot(
            sequence=slot.sequence + 1,
            store=slot.store,
            uuid=slot.uuid,
            align=slot.align,
            oldest_id=oldest_id,
            oldest_offset=oldest_offset,
            head=found.head,
            compat=slot.compat,
        )
        file.write_aside(pack_slot(slot, native.crc32c), SLOT_OFFSETS[at])
        found.slots[at] = found.slot = slot


__all__ = ["Found", "Report", "look", "number_of", "read_slots", "recover"]
