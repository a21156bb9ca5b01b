"""The tail: zeros behind the published end that were really written and synced earlier.

A commit into them changes neither the file's size nor its blocks, so that its sync carries no journal
commit.  Behind the zeros there may be room that is only allocated: it guarantees that what was
reserved fits, and becomes zeros before commits reach it, as far as the background keeps up.
"""

import errno
import os
import resource
import threading
import time
from typing import Final

from commitfs.store.file import StoreFile, is_no_room, rounded_up
from commitfs.types import OFFSET_LIMIT

STEP: Final = 1 << 20
"""Bytes of zeros laid at a time: 0.7 to 1.4 ms, 3 to 6 us a commit."""
LOW: Final = 256 << 10
"""Fewer zeros than this ahead of the placed end: time to lay more."""
_PAGE: Final = 4096
_ZEROS: Final = bytes(STEP)
_RETRY_SECONDS: Final = 1.0


class Tail:
    """Thread-safe; all calls that write block.

    S8: zeros are written only at or above `zeros_end` and under the lock, and a range of records is
    below `zeros_end` before it is written (`claim`): zeros never fall on a record.
    """

    def __init__(self, file: StoreFile, zeros_end: int) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._retry_at = 0.0
        self.zeros_end = zeros_end
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        self._limit = limit if limit != resource.RLIM_INFINITY else OFFSET_LIMIT
        """Where this process may not write any more, be there blocks or not."""
        self.room_end = min(max(zeros_end, file.size()), self._limit)

    def low(self, end: int) -> bool:
        """Whether zeros should be laid now, with `end` the placed end."""
        return self.zeros_end - end < LOW and time.monotonic() >= self._retry_at

    def extend(self, end: int) -> None:
        """Lay zeros one STEP further than they reach, or up to `end` if that is further.

        Without room for so much, as much as `end` needs; ENOSPC and its kin if not even that.
        """
        with self._lock:
            try:
                self._lay(max(rounded_up(end, _PAGE), (self.zeros_end + STEP) // _PAGE * _PAGE))
            except OSError as error:
                if not is_no_room(error):
                    raise
                self._retry_at = time.monotonic() + _RETRY_SECONDS
                if self.zeros_end < end:
                    self._lay(rounded_up(end, _PAGE))

    def _lay(self, end: int) -> None:
        while self.zeros_end < end:
            upto = min(self.zeros_end + STEP, end)
            self._file.write_aside(memoryview(_ZEROS)[: upto - self.zeros_end], self.zeros_end)
            self.zeros_end = upto
            self.room_end = max(self.room_end, upto)

    def claim(self, end: int) -> None:
        """Records will be written up to `end`, be there zeros or not."""
        if end > self.zeros_end:
            with self._lock:
                self.zeros_end = max(self.zeros_end, end)
                self.room_end = max(self.room_end, end)

    def reserve(self, end: int) -> None:
        """See to it that what is placed below `end` will find room; ENOSPC, EDQUOT, EFBIG."""
        if end > self.room_end:
            with self._lock:
                self._allocate(end)

    def _allocate(self, end: int) -> None:
        start = self.room_end
        if end <= start:
            return
        if end > self._limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        try:
            upto = rounded_up(end, STEP)
            self._file.allocate(start, upto - start)
        except OSError as error:
            if not is_no_room(error):
                raise
            upto = rounded_up(end, _PAGE)
            self._file.allocate(start, upto - start)
        self.room_end = upto

    def lay_behind(self, gap_end: int, room: int) -> None:
        """Prepare for a stage that will end at `gap_end`, above all zeros: blocks up to there, and
        behind it the first zeros of the next tail and `room` bytes for what is reserved."""
        with self._lock:
            self._allocate(gap_end + max(room, STEP))
            start = max(gap_end, self.zeros_end)
            self._file.write_aside(memoryview(_ZEROS)[start - gap_end :], start)

    def step_over(self, gap_end: int) -> None:
        """The stage prepared was placed: the tail goes on behind it."""
        with self._lock:
            self.zeros_end = max(self.zeros_end, gap_end + STEP)


__all__ = ["LOW", "STEP", "Tail"]
