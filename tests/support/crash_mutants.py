"""Engines and files broken on purpose, each of which the crash checker has to find out."""

from collections.abc import Callable, Sequence

from commitfs import native
from commitfs.format.record import COMMIT, RECORD_SIZE, Candidate, Record, WalkState, parse
from commitfs.format.slot import SLOT_OFFSETS, SLOT_SIZE, Slot, pack_slot, parse_slot
from commitfs.types import Buffer
from tests.support.crash_file import CrashFile

Wrap = Callable[[CrashFile], CrashFile]


def rewrapped(kind: type[CrashFile]) -> Wrap:
    return lambda file: kind(file.disk, file.trace, writable=file.writable)


class NoSync(CrashFile):
    """The commit's sync is left out."""

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.write(b"".join(buffers), offset)


class StageSyncMerged(CrashFile):
    """Staged data is left to the sync of the commit, which covers the commit's range alone."""

    def sync_stage(self) -> None:
        pass


class SlotFirst(CrashFile):
    """The slot names a commit before it is durable."""

    def write_durable(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        found = parse(data, native.crc32c)
        slots = [parse_slot(self.pread(SLOT_SIZE, at), native.crc32c) for at in SLOT_OFFSETS]
        readable = [slot for slot in slots if isinstance(slot, Slot)]
        newest = max(readable, key=lambda slot: slot.sequence)
        if found is not None and found.kind == COMMIT:
            named = Slot(
                newest.sequence + 1,
                newest.store,
                newest.uuid,
                newest.align,
                newest.oldest_id,
                newest.oldest_offset,
                Record._make(found),
            )
            at = next(i for i, slot in enumerate(slots) if slot is not newest)
            self.write_aside(pack_slot(named, native.crc32c), SLOT_OFFSETS[at])
        super().write_durable(buffers, offset)


class NoCut(CrashFile):
    """A recovery does not clear what lies behind the end."""

    def truncate(self, size: int) -> None:
        pass

    def write_aside(self, data: Buffer, offset: int) -> None:
        if any(data) or offset + len(data) > self.size():
            super().write_aside(data, offset)


def broken_walk(
    *, check_bytes: bool = True, check_continuity: bool = True
) -> Callable[..., native.WalkResult]:
    """A walk without some of its checks, to stand in for the native one."""

    class Lax(WalkState):
        __slots__ = ()

        def accepts(self, found: Candidate) -> bool:
            return found.offset == self.offset and found.store == self.store

    def checksum(data: Buffer) -> int:
        return native.crc32c(data)

    def walk(window: Buffer, base: int, at: native.WalkState) -> native.WalkResult:
        kind = WalkState if check_continuity else Lax
        state = kind(at.offset, at.store, at.session, at.chain, at.commit_id, at.commit_offset)
        view, commits, count = memoryview(window), 0, 0
        while True:
            place = state.offset - base
            need = RECORD_SIZE
            if place + need > len(view):
                break
            found = parse(view, checksum, place)
            if found is None or not state.accepts(found):
                need = 0
                break
            if found.kind == COMMIT:
                need += found.length
                if place + need > len(view):
                    break
                data = view[place + RECORD_SIZE : place + need]
                if check_bytes and checksum(data) != found.bytes_crc:
                    need = 0
                    break
                commits += 1
            count += 1
            state.step(found)
        at.offset, at.session, at.chain = state.offset, state.session, state.chain
        at.commit_id, at.commit_offset = state.commit_id, state.commit_offset
        return native.WalkResult(need, commits, count, 0)

    return walk
