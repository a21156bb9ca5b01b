"""A path in a commit, with errors that name both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commitfs.store.store import Store
    from commitfs.vfs.snapshot import Snapshot


def snapshot_of(store: Store, commit: str, path: bytes) -> tuple[Snapshot, int]:
    """The tree of a commit and the inode of `path` in it, symlinks followed."""
    from commitfs.cli.output import shown
    from commitfs.errors import FsError, NotFoundError
    from commitfs.format.node import NO_ROOT
    from commitfs.vfs.names import id_name, resolve
    from commitfs.vfs.snapshot import Snapshot

    record = resolve(store, commit)
    if record.root == NO_ROOT:
        raise NotFoundError(f"commit {id_name(int(record.id))} is lost: there was nothing of it to salvage")
    snapshot = Snapshot(store, record)
    try:
        return snapshot, snapshot.resolve(path)
    except FsError as exc:
        raise NotFoundError(f"{shown(path) or '/'} in commit {id_name(int(record.id))}: {exc}") from None
