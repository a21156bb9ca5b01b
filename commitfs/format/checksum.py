"""CRC32C (Castagnoli, reflected), the checksum of everything in a store.

`format` takes the function to use as an argument, since the fast one is native; `crc32c` here is the
reference the fast one is compared with.
"""

from collections.abc import Callable
from typing import TypeAlias

from commitfs.types import Buffer

Checksum: TypeAlias = Callable[[Buffer], int]
"""CRC32C of some bytes."""

_POLYNOMIAL = 0x82F63B78


def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _table()


def crc32c(data: Buffer, seed: int = 0) -> int:
    """CRC32C of what had the checksum `seed`, followed by `data`."""
    crc = seed ^ 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


__all__ = ["Checksum", "crc32c"]
