"""One mount's session with the kernel: mounted on entry, served by `serve`, ended on exit.

pyfuse3 keeps its session in module globals, so there is one at a time in a process.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyfuse3
import trio

from commitfs.errors import CommitfsError
from commitfs.fuse import SUBTYPE, workers
from commitfs.fuse.errors import unanswerable
from commitfs.fuse.operations import Operations
from commitfs.fuse.pump import Pump, install

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from commitfs.vfs.vfs import Vfs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to mount.  `flags` are generic mount flags handed on as they are (noexec, nosuid …)."""

    fsname: bytes
    read_only: bool = False
    allow_other: bool = False
    flags: tuple[str, ...] = ()

    def for_libfuse(self) -> set[str]:
        chosen = {f"subtype={SUBTYPE}", "default_permissions", _fsname(self.fsname), *self.flags}
        if self.read_only:
            chosen.add("ro")
        if self.allow_other:
            chosen.add("allow_other")
        return chosen


class _ByteOption(str):
    """pyfuse3 encodes options as ASCII; a store's path may be any bytes."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return str.encode(self, "utf-8", "surrogateescape")


def _fsname(path: bytes) -> str:
    # libfuse splits options at commas and takes a backslash for an escape.
    escaped = path.replace(b"\\", b"\\\\").replace(b",", b"\\,")
    return _ByteOption("fsname=" + escaped.decode("utf-8", "surrogateescape"))


class Session:
    """``async with Session(…) as session``: the file system is mounted inside.

    When the body ends without an exception it is unmounted.  When it ends with one the mount is left
    behind dead (every access fails with ENOTCONN): were it unmounted, the empty directory below would
    show, and a backup or a sync job would take all files for deleted.
    """

    def __init__(self, vfs: Vfs, mountpoint: bytes, options: SessionOptions) -> None:
        self._vfs = vfs
        self._mountpoint = os.fsdecode(mountpoint)
        self._options = options
        self._operations = operations = Operations(vfs)
        self._pump = Pump(lambda: operations.open_requests == 0)

    async def __aenter__(self) -> Self:
        with _stderr_kept() as said:
            try:
                pyfuse3.init(self._operations, self._mountpoint, self._options.for_libfuse())
            except RuntimeError as exc:
                reason = said() or str(exc)
                raise CommitfsError(f"cannot mount at {self._mountpoint}: {reason}") from None
        self._vfs.invalidate = self._invalidate
        logging.getLogger("pyfuse3").addFilter(unanswerable)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._vfs.invalidate = _nobody_to_tell
        pyfuse3.close(unmount=kind is None)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve requests until somebody unmounts or calls `terminate`; started once it does serve."""
        async with trio.open_nursery() as nursery:

            async def report() -> None:
                await self._operations.serving.wait()
                task_status.started()

            nursery.start_soon(report)
            uninstall = install(self._pump)
            be_impatient = workers.install()
            try:
                await pyfuse3.main()
            except* ConnectionAbortedError:
                # The kernel unmounts in the middle of handing a request over, mostly a RELEASE: that
                # read fails with ECONNABORTED, every later one with ENODEV, the end libfuse expects.
                if not self._unmounted():
                    raise
            finally:
                be_impatient()
                uninstall()
            nursery.cancel_scope.cancel()

    def _unmounted(self) -> bool:
        """Whether nothing of ours is left at the mountpoint: on a dead mount statvfs fails."""
        try:
            os.statvfs(self._mountpoint)
        except OSError:
            return False
        return True

    def requests_wait(self) -> int:
        """0 unless the kernel has a request that was not read yet; then another number after each read."""
        return self._pump.waiting()

    async def write_back(self) -> None:
        """Have the kernel write dirty mapped pages.  Needs `serve` to be running."""
        try:
            await trio.to_thread.run_sync(pyfuse3.syncfs, self._mountpoint, abandon_on_cancel=True)
        except (RuntimeError, MemoryError) as exc:
            # No thread to be had, and in this one the kernel would wait for an answer of ours.
            log.warning("changes made through a memory map and not synced may be lost: %s", exc)

    def terminate(self) -> None:
        """Make `serve` return when the requests already read are answered."""
        pyfuse3.terminate()

    def _invalidate(self, ino: int) -> None:
        try:
            pyfuse3.invalidate_inode(ino, attr_only=True)
        except OSError as exc:
            # ENOENT: the kernel does not know the inode, so there is nothing to forget.
            if exc.errno != errno.ENOENT:
                log.debug("cannot invalidate inode %d: %s", ino, exc)


def _nobody_to_tell(ino: int) -> None:
    """The hook of a vfs that no kernel listens to."""


@contextmanager
def _stderr_kept() -> Iterator[_Said]:
    """Keep what libfuse and fusermount3 print on descriptor 2, so that it can be one line of ours."""
    real = os.dup(2)
    kept = os.memfd_create("stderr")
    os.dup2(kept, 2)
    try:
        yield _Said(kept)
    finally:
        os.dup2(real, 2)
        os.close(real)
        os.close(kept)


class _Said:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self) -> str:
        text = os.pread(self._fd, 65536, 0).decode("utf-8", "backslashreplace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return "; ".join(lines)
