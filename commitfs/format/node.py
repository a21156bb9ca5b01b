"""Nodes of the tree as they are stored (docs/format.md, "Nodes": N1 to N8).

The codec here is the reference that tests hold against the one in C, which is what runs.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from commitfs.errors import CorruptError

MAGIC = b"CN"
RAW, LZ4 = 0, 1
BODY_MAX = 2040
KEY_MAX = 264
VALUE_MAX = 512
LEVEL_MAX = 15
DIRTY = 1 << 62
"""Offsets from here on are no places in the log: they number nodes not stored yet."""

_HEADER = struct.Struct("<2sBBHH")
_LENGTHS = struct.Struct("<HH")
_POINTER = struct.Struct("<QII")
assert (_HEADER.size, _LENGTHS.size, _POINTER.size) == (8, 4, 16)

STORED_MAX = _HEADER.size + BODY_MAX

Entry = tuple[bytes, bytes]


class Root(NamedTuple):
    """Pointer to a node; to the topmost, it is a whole tree."""

    offset: int
    """Where it lies in the log; 0 for no node."""
    length: int
    """Bytes it takes there."""
    level: int
    """0 for a leaf."""
    crc: int
    """CRC32C of these bytes."""

    def pack(self) -> bytes:
        """The 16 bytes that stand for it in the node above."""
        return _POINTER.pack(self.offset, self.length | self.level << 24, self.crc)

    @classmethod
    def unpack(cls, data: bytes) -> "Root":
        offset, size, crc = _POINTER.unpack(data)
        return cls(offset, size & 0xFFFFFF, size >> 24, crc)


NO_ROOT = Root(0, 0, 0, 0)
"""The empty tree."""


def split_entries(body: bytes) -> list[Entry]:
    """The entries that a body, known to be sound, consists of."""
    entries = []
    at = 0
    while at < len(body):
        key_size, value_size = _LENGTHS.unpack_from(body, at)
        middle = at + _LENGTHS.size + key_size
        entries.append((body[middle - key_size : middle], body[middle : middle + value_size]))
        at = middle + value_size
    return entries


def join_entries(entries: Sequence[Entry]) -> bytes:
    """The body that consists of `entries`."""
    return b"".join(_LENGTHS.pack(len(key), len(value)) + key + value for key, value in entries)


def encode_node(
    level: int, entries: Sequence[Entry], compress: Callable[[bytes], bytes] | None = None
) -> bytes:
    """The stored form; `compress` gives an LZ4 block, which is taken if it is the shorter."""
    body = join_entries(entries)
    packed = compress(body) if compress else body
    codec = LZ4 if len(packed) < len(body) else RAW
    header = _HEADER.pack(MAGIC, level, codec, len(body), len(entries))
    return header + (packed if codec == LZ4 else body)


def decode_node(stored: bytes, level: int, decompress: Callable[[bytes, int], bytes]) -> list[Entry]:
    """Entries of a stored node of `level`, everything checked but its checksum, which stands in the pointer.

    `decompress` turns an LZ4 block into at most so many bytes, or raises `ValueError`.  `CorruptError` if
    anything does not fit.
    """

    def need(fits: bool, what: str) -> None:
        if not fits:
            raise CorruptError(f"a tree node is damaged: {what}")

    need(_HEADER.size < len(stored) <= STORED_MAX, "length")
    magic, its_level, codec, length, count = _HEADER.unpack_from(stored)
    need(magic == MAGIC and its_level == level <= LEVEL_MAX and codec in (RAW, LZ4), "header")
    need(length <= BODY_MAX and 1 <= count <= length // _LENGTHS.size, "counts")
    body = stored[_HEADER.size :]
    if codec == LZ4:
        need(len(body) < length, "compression")
        try:
            body = decompress(body, length)
        except ValueError:
            need(False, "compression")
    need(len(body) == length, "length of the entries")

    entries: list[Entry] = []
    at = 0
    for _ in range(count):
        need(length - at >= _LENGTHS.size, "an entry")
        key_size, value_size = _LENGTHS.unpack_from(body, at)
        at += _LENGTHS.size
        need(key_size <= KEY_MAX and value_size <= VALUE_MAX, "size of an entry")
        need(length - at >= key_size + value_size, "an entry")
        key, value = body[at : at + key_size], body[at + key_size : at + key_size + value_size]
        at += key_size + value_size
        if entries:
            need(entries[-1][0] < key, "order of the keys")
        else:
            need((not key) == (level > 0), "first key")
        if level:
            need(value_size == _POINTER.size and _child_fits(Root.unpack(value), level), "pointer")
        entries.append((key, value))
    need(at == length, "length of the entries")
    return entries


def _child_fits(child: Root, level: int) -> bool:
    return 0 < child.offset < DIRTY and _HEADER.size < child.length <= STORED_MAX and child.level == level - 1
