"""Nothing new is accepted when memory runs low, so that what was accepted can be committed, and read."""

import errno
import mmap
import os
from typing import Final

HEADROOM: Final = 16 << 20
"""Bytes of address space that have to be free: several times what the commit of one file takes, and room for
whoever hands requests over."""
STEP: Final = 1 << 20
"""So many bytes may be accepted between two looks."""
_EACH: Final = 2048
"""What is kept of anything accepted, besides its bytes."""


class Headroom:
    """Whether the process could still get `HEADROOM` bytes of address space; they are never touched."""

    def __init__(self) -> None:
        self._since = STEP

    def accept(self, nbytes: int) -> None:
        """To be asked before so many bytes are accepted; OSError ENOMEM."""
        self._since += nbytes + _EACH
        if self._since > STEP:
            try:
                mmap.mmap(-1, HEADROOM).close()
            except (OSError, MemoryError):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
            self._since = 0


__all__ = ["HEADROOM", "STEP", "Headroom"]
