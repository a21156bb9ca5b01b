"""Facts: who made a commit and what it changed, at the start of the commit's bytes.

They serve `log` and the xattrs of a commit's directory; the tree alone decides what a commit holds.
"""

from collections.abc import Callable
from struct import Struct, error
from typing import NamedTuple

from commitfs.errors import CorruptError
from commitfs.types import Buffer

_HEAD = Struct("<4sIqIIHBB")
_CHANGE = Struct("<BHHq")
_CRC = Struct("<I")
MAGIC = b"FACT"
MAX_BYTES = 4096
"""A facts block never grows beyond this; changes that do not fit are left out and `truncated` is set."""

OPS = (
    "write", "create", "mkdir", "symlink", "mknod", "link", "unlink", "rmdir", "rename",
    "exchange", "setattr", "setxattr", "removexattr", "truncate", "lost",
)  # fmt: skip
"""Append only: a change is stored as its index here."""
_CODE = {name: code for code, name in enumerate(OPS)}


class Change(NamedTuple):
    op: str
    path: bytes
    """Relative to the root, without a leading slash; where the file was when it was changed."""
    size: int | None = None
    """Bytes of the file afterwards, where contents were written."""
    source: bytes = b""
    """Old path of a rename, other path of a link."""


class Facts(NamedTuple):
    clock_ns: int
    """The clock as it was, before times are kept from going backwards."""
    uid: int
    pid: int
    program: bytes
    changes: tuple[Change, ...]
    truncated: bool = False


def encode_facts(facts: Facts, crc32c: Callable[[Buffer], int]) -> bytes:
    clock_ns, uid, pid, program, changes, truncated = facts
    program = program[:255]
    parts = []
    room = MAX_BYTES - _HEAD.size - len(program) - _CRC.size
    for op, path, size, source in changes:
        if len(path) > 65535 or len(source) > 65535:
            truncated = True
            continue
        part = _CHANGE.pack(_CODE[op], len(path), len(source), -1 if size is None else size) + path + source
        room -= len(part)
        if room < 0:
            truncated = True
            break
        parts.append(part)
    body = program + b"".join(parts)
    length = _HEAD.size + len(body) + _CRC.size
    head = _HEAD.pack(MAGIC, length, clock_ns, uid, pid, len(parts), truncated, len(program))
    block = head + body
    return block + crc32c(block).to_bytes(4, "little")


def facts_length(start: Buffer) -> int:
    """Length of the block that begins with `start` (at least 8 bytes); 0 if none begins there."""
    if bytes(start[:4]) != MAGIC:
        return 0
    length = int.from_bytes(start[4:8], "little")
    return length if _HEAD.size + _CRC.size <= length <= MAX_BYTES else 0


def decode_facts(block: bytes, crc32c: Callable[[Buffer], int]) -> Facts:
    """Raises CorruptError."""
    if len(block) < _HEAD.size + _CRC.size or block[-4:] != _CRC.pack(crc32c(block[:-4])):
        raise CorruptError("facts of a commit are damaged")
    _, _, clock_ns, uid, pid, count, truncated, plen = _HEAD.unpack_from(block)
    at = _HEAD.size + plen
    if at > len(block) - _CRC.size:
        raise CorruptError("facts of a commit are damaged")
    changes: list[Change] = []
    try:
        for _ in range(count):
            op, path, source, size = _CHANGE.unpack_from(block, at)
            at += _CHANGE.size
            end = at + path + source
            if end > len(block) - _CRC.size:
                raise CorruptError("facts of a commit are damaged")
            changes.append(
                Change(OPS[op], block[at : at + path], None if size < 0 else size, block[at + path : end])
            )
            at = end
    except (error, IndexError):
        raise CorruptError("facts of a commit are damaged") from None
    program = block[_HEAD.size : _HEAD.size + plen]
    return Facts(clock_ns, uid, pid, program, tuple(changes), bool(truncated))
