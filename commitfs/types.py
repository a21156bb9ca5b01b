"""Names for the integers that travel between layers; they cost nothing at run time."""

from typing import Final, NewType, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Anything that holds contiguous bytes."""

Ino = NewType("Ino", int)
"""Inode number: live below 2**32; in history ``commit << 32 | inode``."""

CommitId = NewType("CommitId", int)
"""Dense commit number, 1 for the first commit of a store."""

Offset = NewType("Offset", int)
"""Byte offset in the store file, below 2**63."""

OFFSET_LIMIT: Final = 1 << 63
"""No file has a byte here: what claims to lie at or behind it was not written by a store."""

Fh = NewType("Fh", int)
"""Handle of an open file or directory."""

__all__ = ["OFFSET_LIMIT", "Buffer", "CommitId", "Fh", "Ino", "Offset"]
