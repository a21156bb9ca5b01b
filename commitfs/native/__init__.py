"""What is done in C: checksums, durable writes, the walk along the records, the nodes of the tree.

The C functions return 0 or a length, or ``-errno``; the functions here turn that into `OSError`.  cffi
lets other threads run during every call.  The tree's own functions are used by store/nodes.py and
store/tree.py alone, straight through `ffi` and `lib`: one more Python call each would cost them half
their speed.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from commitfs.types import Buffer

try:
    from commitfs.native._native import ffi, lib
except ImportError as error:
    raise ImportError(
        "the C part of commitfs is not built for this Python: run `pip install .` again "
        f"(or `python setup.py build_ext --inplace` in a checkout): {error}"
    ) from error

_ABI = 4
if lib.cfs_abi() != _ABI:
    raise ImportError("the C part of commitfs was built from other sources: build it again")

_JOINED = 128 << 10
"""Up to this many bytes it is cheaper to join buffers than to describe each of them to C."""


class SyncFailed(OSError):
    """All data was written and the sync proper failed: what is durable is unknown, and syncing again would
    not tell."""


def crc32c(data: Buffer, seed: int = 0) -> int:
    """CRC32C of `data`; with `seed`, the checksum of what came before it, that of both together."""
    if type(data) is bytes:
        return lib.cfs_crc32c(seed, data, len(data))
    with ffi.from_buffer(data) as at:
        return lib.cfs_crc32c(seed, at, len(at))


def _fail(rc: int) -> NoReturn:
    if rc <= -lib.CFS_AT_SYNC:
        code = -rc - lib.CFS_AT_SYNC
        raise SyncFailed(code, os.strerror(code))
    raise OSError(-rc, os.strerror(-rc))


class _Pieces:
    """An iovec array over buffers, which it holds until `release`.

    Released rather than left to the collector: an error's traceback would keep the buffers held, and their
    owners could then not let go of them.
    """

    __slots__ = ("_held", "array")

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._held = [ffi.from_buffer(data) for data in buffers]
        self.array: Any = ffi.new("struct iovec[]", len(self._held))
        for piece, at in zip(self.array, self._held, strict=True):
            piece.iov_base = at
            piece.iov_len = len(at)

    def release(self) -> None:
        for at in self._held:
            ffi.release(at)


def _write(
    one: Callable[[int, bytes, int, int], int],
    many: Callable[[int, Any, int, int], int],
    fd: int,
    buffers: Sequence[Buffer],
    offset: int,
) -> None:
    # A single buffer is handed on where it lies, since its alignment may matter (O_DIRECT).
    if len(buffers) > 1 and sum(map(len, buffers)) <= _JOINED:
        buffers = (b"".join(buffers),)
    if len(buffers) == 1 and type(buffers[0]) is bytes:
        rc = one(fd, buffers[0], len(buffers[0]), offset)
    else:
        pieces = _Pieces(buffers)
        try:
            rc = many(fd, pieces.array, len(pieces.array), offset)
        finally:
            pieces.release()
    if rc:
        _fail(rc)


def write_durable(fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write `buffers` one behind the other at `offset`; they are durable when this returns.

    pwritev2 with RWF_DSYNC, which syncs that range alone; where it is refused, pwritev and fdatasync.
    `OSError`: with ENOSPC, EDQUOT or EFBIG, and not `SyncFailed`, it was the write; else it is unknown
    what is durable.
    """
    _write(lib.cfs_write_durable_one, lib.cfs_write_durable, fd, buffers, offset)


def write_all(fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write `buffers` one behind the other at `offset`, without a sync.  `OSError`."""
    _write(lib.cfs_write_all_one, lib.cfs_write_all, fd, buffers, offset)


def sync(fd: int) -> None:
    """fdatasync, once: unlike `os.fdatasync` not again after EINTR either.  `SyncFailed`."""
    rc = lib.cfs_sync(fd)
    if rc:
        _fail(rc - lib.CFS_AT_SYNC)


class NativeCommitter:
    """A thread that does one durable write at a time and signals its end through an eventfd.

    Cheaper than a thread of Python: nothing but the C thread touches the write, and the caller is woken once.
    """

    def __init__(self) -> None:
        error = ffi.new("int *")
        self._committer: Any = lib.cfs_committer_new(error)
        if not self._committer:
            _fail(error[0])
        self._pieces: _Pieces | None = None

    def _open(self) -> Any:
        if self._committer is None:
            raise ValueError("the committer is closed")
        return self._committer

    def submit(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Begin write_durable of `buffers`.  `finish` must be called before the next."""
        committer = self._open()
        pieces = _Pieces(buffers)
        if lib.cfs_committer_submit(committer, fd, pieces.array, len(pieces.array), offset):
            pieces.release()
            raise RuntimeError("a write is under way")
        self._pieces = pieces

    def fileno(self) -> int:
        """A descriptor that is readable once the write has ended."""
        return lib.cfs_committer_fileno(self._open())

    def finish(self) -> None:
        """Wait for the write's end, if need be; raises what write_durable would have raised."""
        pieces = self._pieces
        if pieces is None:
            raise RuntimeError("no write is under way")
        rc = lib.cfs_committer_finish(self._open())
        self._pieces = None
        pieces.release()
        if rc:
            _fail(rc)

    def close(self) -> None:
        """Wait for the write under way, end the thread.  Its result is lost; closing twice is allowed."""
        committer, self._committer = self._committer, None
        if committer is not None:
            lib.cfs_committer_free(committer)
            if self._pieces is not None:
                self._pieces.release()
                self._pieces = None


class WalkState(Protocol):
    """Where a walk stands: what the next record has to fit to (format/record.py has one).  `walk` moves it
    on."""

    offset: int
    """Where the next record must lie."""
    store: int
    """The store's number."""
    session: int
    """Of the record before; whatever, if there is none: the next must be the first of its session."""
    chain: int
    """Own checksum of the record before, 0 if there is none."""
    commit_id: int
    """Newest commit before, 0 if there is none."""
    commit_offset: int
    """Its record, 0 if there is none."""


class WalkResult(NamedTuple):
    """What one call of `walk` did."""

    need: int
    """Bytes wanted from ``state.offset`` on to go further; 0: the record there does not fit, here the walk
    ends."""
    commits: int
    """Commits passed; ``state.commit_offset`` is the record of the last."""
    records: int
    """Records passed, of any kind."""
    unknown_flags: int
    """Flags of the low byte unknown to this version, of all records passed: such a store must not be
    written."""


def walk(window: Buffer, base: int, state: WalkState) -> WalkResult:
    """Pass all records that fit, one behind the other, and lie whole in `window`: log bytes from offset
    `base` on.

    `state` moves on with them; `ValueError` if it stands before the window.
    """
    if base > state.offset:
        raise ValueError("the window begins behind the walk")
    at: Any = ffi.new("cfs_walk_state *")
    at.offset, at.store, at.session, at.chain = state.offset, state.store, state.session, state.chain
    at.commit_id, at.commit_offset = state.commit_id, state.commit_offset
    with ffi.from_buffer("uint8_t[]", window) as bytes_:
        lib.cfs_walk(bytes_, len(bytes_), base, at)
    state.offset = at.offset
    state.session = at.session
    state.chain = at.chain
    state.commit_id = at.commit_id
    state.commit_offset = at.commit_offset
    return WalkResult(at.need, at.commits, at.records, at.unknown_flags)


__all__ = [
    "NativeCommitter",
    "SyncFailed",
    "WalkResult",
    "WalkState",
    "crc32c",
    "ffi",
    "lib",
    "sync",
    "walk",
    "write_all",
    "write_durable",
]
