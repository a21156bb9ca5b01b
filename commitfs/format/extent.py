"""Extents: which log bytes a range of a file is made of (docs/format.md, "Keys and values").

An extent points to a run of units in the log: 64 KiB each, the last one shorter, each with a CRC32C
of its own.  It uses `length` bytes of the run from `skip` on; cutting an extent keeps whole units, so
that what is left can still be verified.
"""

from struct import Struct
from typing import NamedTuple

from commitfs.errors import CorruptError
from commitfs.types import OFFSET_LIMIT

UNIT = 65536
EXTENT_MAX = 8 * UNIT
"""Longest run of one extent, so that its value fits a node."""

_HEAD = Struct("<IIIQ")
_CRCS = [Struct(f"<{n}I") for n in range(EXTENT_MAX // UNIT + 1)]


class Extent(NamedTuple):
    length: int
    """Bytes of the file, 1 to EXTENT_MAX."""
    skip: int
    """Bytes of the run's first unit before the first byte used."""
    run: int
    """Bytes of the run, 1 to EXTENT_MAX."""
    offset: int
    """Log offset of the run."""
    crcs: tuple[int, ...]
    """CRC32C of each unit."""

    def slice(self, start: int, end: int) -> "Extent":
        """The extent of bytes start..end (0 <= start < end <= length) of this one."""
        first = (self.skip + start) // UNIT
        last = (self.skip + end - 1) // UNIT
        return Extent(
            end - start,
            self.skip + start - first * UNIT,
            min(self.run, (last + 1) * UNIT) - first * UNIT,
            self.offset + first * UNIT,
            self.crcs[first : last + 1],
        )


def encode_extent(extent: Extent) -> bytes:
    return _HEAD.pack(*extent[:4]) + _CRCS[len(extent.crcs)].pack(*extent.crcs)


def decode_extent(value: bytes) -> Extent:
    """Raises CorruptError when the parts do not fit one another."""
    count, odd = divmod(len(value) - _HEAD.size, 4)
    if odd or not 1 <= count <= EXTENT_MAX // UNIT:
        raise CorruptError("extent value makes no sense")
    length, skip, run, offset = _HEAD.unpack_from(value)
    if not (
        0 < run <= EXTENT_MAX
        and length > 0
        and skip + length <= run
        and skip < UNIT
        and -(-run // UNIT) == count
        and offset + run < OFFSET_LIMIT
    ):
        raise CorruptError("extent value makes no sense")
    return Extent(length, skip, run, offset, _CRCS[count].unpack_from(value, _HEAD.size))
