"""Memory kept back, so that what was accepted can still be committed when there is no more."""

import errno
import mmap
import os
from typing import Final

SPARE_BYTES: Final = 8 << 20
"""Several times what the commit of one file takes: its bytes in memory, once more in the record's group."""


class Spare:
    """`SPARE_BYTES` of address space, never touched.  Given up when memory runs out; until it can be had
    again nothing new is accepted."""

    def __init__(self) -> None:
        self._held: mmap.mmap | None = mmap.mmap(-1, SPARE_BYTES)

    def give_up(self) -> None:
        """Memory ran out: commits may have this."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def check(self) -> None:
        """To be asked before anything new is accepted; OSError ENOMEM."""
        if self._held is None:
            try:
                self._held = mmap.mmap(-1, SPARE_BYTES)
            except (OSError, MemoryError):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None


__all__ = ["SPARE_BYTES", "Spare"]
