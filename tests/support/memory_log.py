"""A log that is a bytearray: enough for trees and extents, without a store."""

from commitfs.errors import CorruptError
from commitfs.native import crc32c
from commitfs.types import Buffer


class MemoryLog:
    def __init__(self) -> None:
        self.data = bytearray(8192)
        self.reads = 0

    def place(self, data: Buffer) -> int:
        """Append; returns the offset."""
        self.data += bytes(-len(self.data) % 8)
        offset = len(self.data)
        self.data += data
        return offset

    def read(self, offset: int, length: int) -> bytes:
        self.reads += 1
        return bytes(self.data[offset : offset + length])

    def read_checked(self, offset: int, length: int, crc: int, what: str = "data") -> bytes:
        data = self.read(offset, length)
        if len(data) != length or crc32c(data) != crc:
            raise CorruptError(what, offset)
        return data
