"""The life of one mount: everything acquired in order, given up in the opposite order.

    store > committer > stager > vfs > session > (serving) > last commit > session > … > store

What ends a mount: somebody unmounts, a signal, or an error nobody foresaw.  The first two commit
everything that is pending or staged and end with the mount gone.  The third makes durable what was
acknowledged or staged and leaves the mount dead (see Session).
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
from commitfs.errors import LockedError
from commitfs.fuse import FSTYPE
from commitfs.fuse.session import Session, SessionOptions
from commitfs.store.committer import GroupCommitter
from commitfs.store.stage import Stager
from commitfs.store.store import Store
from commitfs.vfs.create import create_store
from commitfs.vfs.vfs import Vfs

if TYPE_CHECKING:
    from types import TracebackType

    from commitfs.daemon.daemonize import Ready
    from commitfs.daemon.options import MountOptions

log = logging.getLogger(__name__)

WRITE_BACK_LIMIT = 10.0
"""Seconds a signal waits for the kernel to hand over mapped pages."""
LAST_COMMIT_LIMIT = 30.0
"""Seconds for a commit of what is staged when the mount has broken down."""
OWNER_ENDS_LIMIT = 5.0
"""Seconds to wait for the store's owner when its mount is gone and it is only finishing."""


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
    trio.run(_life, plan, ready)


async def _life(plan: Plan, ready: Ready) -> None:
    control = Control()
    try:
        async with trio.open_nursery() as outer:
            await _serve(plan, ready, control, outer)
            outer.cancel_scope.cancel()
    except BaseException as exc:
        control.finish(str(single(exc)))
        raise single(exc) from None
    control.finish(None)
