"""The life of one mount: everything acquired in order, given up in the opposite order.

What ends it: somebody unmounts, a signal, or an error nobody foresaw.  After the first two everything
pending or staged is committed and the mount is gone.  After the third what was staged is committed if
that can be done, and the mount is left dead (see Session).
"""

from __future__ import annotations

import gc
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from commitfs.daemon.control import Control
from commitfs.daemon.daemonize import single
from commitfs.daemon.mountinfo import mounted_at, mounts
from commitfs.daemon.preflight import check_mountpoint, check_store_path
from commitfs.daemon.signals import on_signal
from commitfs.errors import CommitfsError, CorruptError, LockedError, UsageError, one_line
from commitfs.format.slot import DEFAULT_ALIGN
from commitfs.fuse import FSTYPE
from commitfs.fuse.session import Session, SessionOptions
from commitfs.store.committer import GroupCommitter
from commitfs.store.stage import Stager
from commitfs.store.store import Store
from commitfs.vfs.create import create_store
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs

if TYPE_CHECKING:
    from types import TracebackType

    from commitfs.daemon.daemonize import Ready
    from commitfs.daemon.options import MountOptions

log = logging.getLogger(__name__)

WRITE_BACK_LIMIT = 10.0
"""Seconds a signal waits for the kernel to hand over mapped pages."""
SALVAGE_LIMIT = 30.0
"""Seconds for a commit of what is staged when the mount has broken down."""
FIRST_COMMIT = 1
"""The one a store is made with: an empty root."""
OWNER_ENDS_LIMIT = 5.0
"""Seconds to wait for the store's owner when its mount is gone already and it is only finishing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to mount where.  Paths are absolute and free of symlinks."""

    store: bytes
    mountpoint: bytes
    options: MountOptions
    fusermount: str


def run(plan: Plan, ready: Ready) -> None:
    """Mount and serve until the mount ends; `ready` is called once it serves.

    Raises what the checks and the store raise; an error after `ready` is one that ended the mount.
    """
    served = False

    def serves(said: str) -> None:
        nonlocal served
        served = True
        ready(said)

    control = Control()
    try:
        trio.run(_life, plan, serves, control)
    except BaseException as exc:
        cause = single(exc)
        control.finish(one_line(cause))
        where = os.fsdecode(plan.mountpoint)
        if isinstance(cause, OSError) and not served:
            # Of the machine, not of ours: whoever asked for the mount is told, and that is all.
            store = os.fsdecode(plan.store)
            raise CommitfsError(f"cannot mount {store} at {where}: {one_line(cause)}") from None
        if not isinstance(cause, CommitfsError | KeyboardInterrupt):
            ours = None if isinstance(cause, OSError) else exc
            log.critical("the mount at %s broke down: %s", where, one_line(cause), exc_info=ours)
        raise cause from None
    control.finish(None)


async def _life(plan: Plan, ready: Ready, control: Control) -> None:
    options = plan.options
    served = trio.Event()
    session: Session

    async def stop() -> None:
        await served.wait()
        with trio.move_on_after(WRITE_BACK_LIMIT):
            await session.write_back()
        session.terminate()

    async with AsyncExitStack() as stack:
        there = check_store_path(plan.store, read_only=options.read_only)
        store = await _open_store(plan, there, stack, served)
        background = await stack.enter_async_context(trio.open_nursery())
        stack.callback(background.cancel_scope.cancel)
        await background.start(on_signal, stop)
        committer = stager = None
        if store.writable:
            committer = GroupCommitter(store)
            await background.start(committer.run)
            stager = Stager(store, committer)
            stack.callback(stager.close)
        vfs = Vfs(store, committer, stager, settle=options.settle, history_visible=options.history_visible)
        session = await stack.enter_async_context(
            Session(
                vfs,
                plan.mountpoint,
                SessionOptions(
                    options.fsname or plan.store, options.read_only, options.allow_other, options.flags
                ),
            )
        )
        if committer is not None:
            committer.others_come = session.requests_wait
        stack.push_async_exit(_LastCommit(vfs))
        await background.start(vfs.run)
        mount = mounted_at(plan.mountpoint)
        if mount is not None:
            background.start_soon(control.run, mount.device)
        async with trio.open_nursery() as serving:
            await serving.start(session.serve)
            # What lives by now lives as long as the mount: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            served.set()
            ready("" if there else f"made a new store at {os.fsdecode(plan.store)}")


async def _open_store(plan: Plan, there: bool, stack: AsyncExitStack, served: trio.Event) -> Store:
    """The store, made if there is none and nothing else speaks against the mount; closed by `stack`."""
    writable = not plan.options.read_only
    if there:
        store = await _patiently(plan.store, writable)
        stack.callback(store.close)
        _check_align(store, plan.options.align)
        _check_root(store)
        check_mountpoint(plan.mountpoint, plan.store, plan.fusermount)
        return store
    check_mountpoint(plan.mountpoint, plan.store, plan.fusermount)
    create_store(os.fsdecode(plan.store), align=plan.options.align or DEFAULT_ALIGN)
    store = Store.open(os.fsdecode(plan.store), writable=writable)
    stack.callback(store.close)

    def unmake() -> None:
        # A mount that never served leaves nothing behind.  Once the kernel has the mount, requests may
        # come and be acknowledged before anybody hears that it serves: only an empty store goes.
        if not served.is_set() and store.durable_id <= FIRST_COMMIT:
            os.unlink(plan.store)

    stack.callback(unmake)
    return store


def _check_align(store: Store, wanted: int | None) -> None:
    """An alignment asked for cannot be had where the store was made with another."""
    if wanted is not None and wanted != store.align:
        raise UsageError(
            f"{store.path} was made with align={store.align}, which stays: leave out align={wanted}, or make "
            "another store"
        )


def _check_root(store: Store) -> None:
    """A store can hold any tree; only one with a root directory can be mounted."""
    try:
        rooted = Snapshot(store, store.head).has_root()
    except CorruptError as exc:
        assert store.head is not None
        newest = int(store.head.id)
        hint = "; older commits may be whole: commitfs log, ls and cat read them"
        raise CommitfsError(
            f"{store.path} cannot be mounted: in commit {newest}, its newest, {exc}"
            f"{hint if newest > store.oldest_id else ''}"
        ) from None
    if not rooted:
        raise CommitfsError(
            f"{store.path} holds no root directory, so it cannot be mounted: it is no filesystem"
        )


async def _patiently(path: bytes, writable: bool) -> Store:
    """Open a store; where its owner's mount is gone already, wait a while for it to finish."""
    deadline = trio.current_time() + OWNER_ENDS_LIMIT
    while True:
        try:
            return Store.open(os.fsdecode(path), writable=writable, report=log.warning)
        except LockedError:
            mounted = any(mount.fstype == FSTYPE and mount.source == path for mount in mounts())
            if mounted or trio.current_time() > deadline:
                raise
        await trio.sleep(0.02)


class _LastCommit:
    """Exit of the mount's inner part: commit what there is to commit."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs

    async def __call__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with trio.CancelScope(shield=True):
                await self._vfs.close()
            return
        with trio.move_on_after(SALVAGE_LIMIT, shield=True):
            try:
                # Whole changes only: what is pending may be half written.
                await self._vfs.settle()
            except Exception as failed:
                log.error("staged changes are lost: %s", failed)
