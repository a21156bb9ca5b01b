"""The record: 128 bytes that begin each entry of the log (docs/format.md, "Record").

Bytes that decode are a `Candidate`: nothing says yet that they belong where they were found.  A
`Record` is one that was accepted, by the walk (`WalkState.accepts`) or along a pointer out of an
accepted one (`Candidate.confirm`), or that this process placed itself.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from commitfs.errors import CorruptError
from commitfs.format.checksum import Checksum
from commitfs.format.node import Root
from commitfs.types import Buffer

MAGIC: Final = b"PTR3"
EARLIER_MAGIC: Final = b"PTR2"
"""Of a head of the earlier format, PURETRE2: only ever in a slot."""
VERSION: Final = 1
RECORD_SIZE: Final = 128
LOG_START: Final = 8192

COMMIT: Final = 1
STAGE: Final = 2
PAD: Final = 3

FIRST: Final = 1
"""Flag: first of its session."""
LAST: Final = 2
"""Flag: last of its group."""
FLAGS_UNKNOWN: Final = 0x00FF & ~(FIRST | LAST)
"""Flags of the low byte this version does not know: it must not write to such a store."""

_LAYOUT: Final = struct.Struct("<4sBBHQQQQIIQQQQQQIIqIIII")
_BODY: Final = struct.Struct("<4sBBHQQQQIIQQQQQQIIqIII")
assert _LAYOUT.size == RECORD_SIZE
assert _BODY.size == RECORD_SIZE - 4

_LENGTH_BITS: Final = 24


class Fields(NamedTuple):
    """What a record says, in the order in which it lies on disk."""

    kind: int
    flags: int
    offset: int
    """Where it begins: bytes from the start of the file."""
    id: int
    store: int
    session: int
    length: int
    """Of its bytes, which follow it at once."""
    bytes_crc: int
    synced: int
    prev: int
    skip: int
    parent: int
    """Offset of the parent's record, 0: none in this log."""
    parent_id: int
    root_offset: int
    root_word: int
    root_crc: int
    time_ns: int
    branch: int
    """Of a pad: the alignment it fills up to."""
    chain: int
    crc: int

    @property
    def bytes_offset(self) -> int:
        return self.offset + RECORD_SIZE

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + RECORD_SIZE + self.length + 7 & ~7

    @property
    def root(self) -> Root:
        word = self.root_word
        return Root(self.root_offset, word & (1 << _LENGTH_BITS) - 1, word >> _LENGTH_BITS, self.root_crc)


class Record(Fields):
    """A record that belongs to the log.  One that waits for its write has no session, chain, synced
    and checksum yet (`seal`)."""

    __slots__ = ()


class Candidate(Fields):
    """Decoded, with its own checksum right; not known to belong anywhere."""

    __slots__ = ()

    def confirm(self, *, offset: int, store: int, id: int) -> Record:  # noqa: A002
        """The record, read along a pointer that says where it is and which commit; CorruptError."""
        if self.kind != COMMIT or (self.offset, self.store, self.id) != (offset, store, id):
            raise CorruptError(f"the record of commit {id}", offset)
        return Record._make(self)


def root_word(root: Root) -> int:
    """Length and level of a root in the one field that holds both."""
    if not (0 <= root.length < 1 << _LENGTH_BITS and 0 <= root.level < 256):
        raise ValueError(f"no such root: {root}")
    return root.level << _LENGTH_BITS | root.length


def pack(fields: Fields, checksum: Checksum, *, earlier: bool = False) -> tuple[bytes, int]:
    """The 128 bytes, and the checksum they end with, whatever `fields.crc` says."""
    magic = EARLIER_MAGIC if earlier else MAGIC
    body = _BODY.pack(magic, VERSION, *fields[:18], 0, fields.chain)
    crc = checksum(body)
    return body + crc.to_bytes(4, "little"), crc


def parse(data: Buffer, checksum: Checksum, at: int = 0, *, earlier: bool = False) -> Candidate | None:
    """The record at `at` of `data`; None where there is none that is whole in itself."""
    if len(data) - at < RECORD_SIZE:
        return None
    magic, version, *values, _reserved, chain, crc = _LAYOUT.unpack_from(data, at)
    if magic != (EARLIER_MAGIC if earlier else MAGIC) or version != VERSION:
        return None
    if not COMMIT <= values[0] <= PAD:
        return None
    if checksum(memoryview(data)[at : at + RECORD_SIZE - 4]) != crc:
        return None
    return Candidate._make((*values, chain, crc))


def seal(
    record: Record, *, session: int, flags: int, synced: int, chain: int, checksum: Checksum
) -> tuple[Record, bytes]:
    """The placed record completed for its write, and its bytes."""
    (
        kind, _, offset, id_, store, _, length, bytes_crc, _, prev, skip,
        parent, parent_id, root_offset, word, root_crc, time_ns, branch, _, _,
    ) = record  # fmt: skip
    body = _BODY.pack(
        MAGIC, VERSION, kind, flags, offset, id_, store, session, length, bytes_crc, synced, prev, skip,
        parent, parent_id, root_offset, word, root_crc, time_ns, branch, 0, chain,
    )  # fmt: skip
    crc = checksum(body)
    sealed = (
        kind, flags, offset, id_, store, session, length, bytes_crc, synced, prev, skip,
        parent, parent_id, root_offset, word, root_crc, time_ns, branch, chain, crc,
    )  # fmt: skip
    return Record._make(sealed), body + crc.to_bytes(4, "little")


def skip_id(commit_id: int) -> int:
    """Id of the commit that commit `commit_id` (from 1) points to with its skip pointer; 0: none.

    Skew-binary numbers: ids are sums of terms 2**k - 1, greatest first, and the pointer takes the
    last term away.  Any id is reached from any later one in O(log n) steps of prev or skip.
    """
    rest = commit_id
    while True:
        term = (1 << (rest + 1).bit_length() - 1) - 1
        if term == rest:
            return commit_id - term
        rest -= term


@dataclass(slots=True)
class WalkState:
    """Where a walk stands: what the next record must fit to."""

    offset: int
    """Where the next record begins."""
    store: int
    session: int
    """Of the last record; 0: none, so that the next must be the first of a session."""
    chain: int
    """Own checksum of the last record."""
    commit_id: int
    """Of the newest commit accepted."""
    commit_offset: int
    """Of its record."""

    @classmethod
    def after(cls, head: Record) -> "WalkState":
        return cls(head.end, head.store, head.session, head.crc, head.id, head.offset)

    @classmethod
    def at_start(cls, store: int) -> "WalkState":
        """Before the first record of a log."""
        return cls(LOG_START, store, 0, 0, 0, 0)

    def accepts(self, found: Candidate) -> bool:
        """Whether `found`, decoded at `self.offset`, continues the walk, its bytes apart (S9)."""
        return (
            found.offset == self.offset
            and found.store == self.store
            and found.chain == self.chain
            and found.id == self.commit_id + (found.kind == COMMIT)
            and (found.session == self.session or bool(found.flags & FIRST))
        )

    def step(self, found: Fields) -> None:
        self.offset = found.end
        self.session = found.session
        self.chain = found.crc
        if found.kind == COMMIT:
            self.commit_id = found.id
            self.commit_offset = found.offset


class WalkResult(NamedTuple):
    need: int
    """Bytes wanted from the state's offset on; 0: the walk has ended there."""
    records: tuple[Record, ...]
    """Accepted, of all kinds, in order."""


def walk(window: Buffer, base: int, state: WalkState, checksum: Checksum) -> WalkResult:
    """Walk on from `state` over the records wholly inside `window`, the log's bytes from `base` on.

    A commit is accepted with its bytes, a stage or a pad by its record alone.  This is the reference
    for the native walk.
    """
    view = memoryview(window)
    accepted: list[Record] = []
    while True:
        at = state.offset - base
        if not 0 <= at <= len(view) - RECORD_SIZE:
            return WalkResult(RECORD_SIZE, tuple(accepted))
        found = parse(view, checksum, at)
        if found is None or not state.accepts(found):
            return WalkResult(0, tuple(accepted))
        if found.kind == COMMIT:
            start = at + RECORD_SIZE
            if start + found.length > len(view):
                return WalkResult(RECORD_SIZE + found.length, tuple(accepted))
            if checksum(view[start : start + found.length]) != found.bytes_crc:
                return WalkResult(0, tuple(accepted))
        state.step(found)
        accepted.append(Record._make(found))


__all__ = [
    "COMMIT",
    "EARLIER_MAGIC",
    "FIRST",
    "FLAGS_UNKNOWN",
    "LAST",
    "LOG_START",
    "MAGIC",
    "PAD",
    "RECORD_SIZE",
    "STAGE",
    "VERSION",
    "Candidate",
    "Fields",
    "Record",
    "WalkResult",
    "WalkState",
    "pack",
    "parse",
    "root_word",
    "seal",
    "skip_id",
    "walk",
]
