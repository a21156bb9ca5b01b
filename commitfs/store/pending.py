"""Bytes that have a place in the log and are not yet known to be in the file."""

import threading
from bisect import bisect_left, bisect_right

from commitfs.types import Buffer


class Pending:
    """Segments by offset, so that what was just placed can be read at once.  Thread-safe."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segments: dict[int, Buffer] = {}
        self._lock = threading.Lock()

    def add(self, offset: int, data: Buffer) -> None:
        """Keep `data`, which nobody changes any more, for `offset`; segments do not overlap."""
        if not len(data):
            return
        with self._lock:
            starts = self._starts
            if not starts or offset > starts[-1]:
                starts.append(offset)
            else:
                starts.insert(bisect_left(starts, offset), offset)
            self._segments[offset] = data

    def remove(self, offset: int) -> None:
        with self._lock:
            if self._segments.pop(offset, None) is not None:
                del self._starts[bisect_left(self._starts, offset)]

    def within(self, offset: int, length: int) -> list[tuple[int, Buffer]]:
        """The segments that share bytes with the range, ascending."""
        with self._lock:
            starts = self._starts
            if not starts or offset + length <= starts[0]:
                return []
            first = max(bisect_right(starts, offset) - 1, 0)
            behind = bisect_left(starts, offset + length)
            found = [(start, self._segments[start]) for start in starts[first:behind]]
        return [(start, data) for start, data in found if start + len(data) > offset]


__all__ = ["Pending"]
