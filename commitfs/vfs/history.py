"""The history part of the mount: `.commits`, its commits' directories, and names resolved there.

Inode numbers say all there is to know, so nothing is remembered per lookup:

    2                       .commits
    commit << 32 | inode    in a commit: of a directory the commit it is seen in, of everything else the
                            commit that last changed it, so that equal versions share the page cache
    SYMLINK << 32 | commit  a name that was resolved: a symlink to that commit's directory
"""

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator

from commitfs.errors import CommitfsError, FsError, NotFoundError, UsageError
from commitfs.format.facts import Facts, decode_facts, facts_length
from commitfs.format.inode import NAME_MAX
from commitfs.format.keys import ROOT_INO
from commitfs.format.record import RECORD_SIZE, Record
from commitfs.native import crc32c
from commitfs.store.store import Store
from commitfs.vfs.api import Attr
from commitfs.vfs.names import BRANCH, id_name, resolve
from commitfs.vfs.snapshot import Snapshot, stat_of

COMMITS_INO = 2
SYMLINK = 0x7FFF_FFFF
SHIFT = 32
LOW = (1 << SHIFT) - 1
FOREVER = 10 * 365 * 86400.0
"""Seconds; what is in a commit never changes."""
SNAPSHOTS = 64
XATTR_PREFIX = b"user.commitfs."
LATEST = b"latest"


def facts(store: Store, record: Record) -> Facts | None:
    """Who made a commit and what changed; None for a commit whose bytes hold none."""
    offset = int(record.offset) + RECORD_SIZE
    if record.length < 8:
        return None
    length = facts_length(store.read(offset, 8))
    if not length or length > record.length:
        return None
    return decode_facts(store.read(offset, length), crc32c)


class History:
    """Read-only; raises FsError EROFS for nothing itself: whoever dispatches to it refuses writes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        self.owner = (os.getuid(), os.getgid())

    def follow(self) -> None:
        """The store has moved on, or was replaced: look at its commits anew."""
        self._snapshots.clear()

    def snapshot(self, commit: int) -> Snapshot:
        """Raises FsError ENOENT for a commit that is not there."""
        found = self._snapshots.get(commit)
        if found is not None:
            self._snapshots.move_to_end(commit)
            return found
        try:
            found = Snapshot(self.store, self.store.record(commit))
        except NotFoundError:
            raise FsError(errno.ENOENT) from None
        self._snapshots[commit] = found
        if len(self._snapshots) > SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return found

    def _valid(self, commit: int) -> float:
        """Beside a writer the newest commit may not be durable yet, and might be written anew."""
        head = self.store.head
        return FOREVER if self.store.writable or (head is not None and commit < head.id) else 0.0

    def _record(self, commit: int) -> Record:
        record = self.snapshot(commit).record
        assert record is not None
        return record

    # .commits itself

    def commits_attr(self) -> Attr:
        head = self.store.head
        when = head.time_ns if head is not None else 0
        uid, gid = self.owner
        return Attr(COMMITS_INO, stat.S_IFDIR | 0o555, 2, uid, gid, 0, 0, 0, when, when, when)

    def symlink_attr(self, commit: int) -> Attr:
        when = self._record(commit).time_ns
        uid, gid = self.owner
        ino = SYMLINK << SHIFT | commit
        size = len(id_name(commit))
        return Attr(ino, stat.S_IFLNK | 0o777, 1, uid, gid, 0, size, 0, when, when, when)

    def lookup_commit(self, name: bytes) -> Attr:
        """A name in `.commits`.  Raises FsError ENOENT, never to be remembered."""
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        try:
            text = name.decode("ascii")
            if text.isdigit() and id_name(int(text)) == text:
                return self.commit_attr(int(text))
            return self.symlink_attr(int(resolve(self.store, text).id))
        except (UnicodeDecodeError, NotFoundError, UsageError):
            raise FsError(errno.ENOENT) from None

    def list_commits(self, after: int) -> Iterator[tuple[int, bytes, Attr]]:
        """(cookie, name, attr) by id, then `latest`.  The cookie of a commit is its id + 2.

        Times are those of `.commits`: reading each record would make a listing slow, and as the
        attributes are valid for no time, stat asks again.
        """
        head = self.store.head
        if head is None:
            return
        shown = self.commits_attr()
        newest = int(head.id)
        for commit in range(max(int(self.store.oldest_id), after - 1), newest + 1):
            yield commit + 2, id_name(commit).encode(), shown._replace(ino=commit << SHIFT | ROOT_INO)
        cookie = 1 << 62
        if after < cookie:
            yield cookie, LATEST, self.symlink_attr(newest)

    # In a commit

    def commit_attr(self, commit: int) -> Attr:
        snapshot = self.snapshot(commit)
        record = snapshot.record
        assert record is not None
        if not record.root.length:
            raise FsError(errno.ENOENT)
        attr = snapshot.attr(ROOT_INO)
        when = record.time_ns
        return attr._replace(
            ino=commit << SHIFT | ROOT_INO,
            mtime_ns=when,
            ctime_ns=when,
            atime_ns=when,
            attr_valid=self._valid(commit),
        )

    def _attr(self, snapshot: Snapshot, commit: int, ino: int) -> Attr:
        inode = snapshot.inode(ino)
        at = commit if stat.S_ISDIR(inode.mode) else inode.changed
        valid = self._valid(commit)
        return stat_of(at << SHIFT | ino, inode, valid, valid)

    def getattr(self, ino: int) -> Attr:
        if ino == COMMITS_INO:
            return self.commits_attr()
        commit, inode = ino >> SHIFT, ino & LOW
        if commit == SYMLINK:
            return self.symlink_attr(inode)
        if inode == ROOT_INO:
            return self.commit_attr(commit)
        return self._attr(self.snapshot(commit), commit, inode)

    def lookup(self, parent: int, name: bytes) -> Attr:
        if parent == COMMITS_INO:
            return self.lookup_commit(name)
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        commit = parent >> SHIFT
        snapshot = self.snapshot(commit)
        return self._attr(snapshot, commit, snapshot.lookup(parent & LOW, name))

    def entries(self, directory: int, after: int) -> Iterator[tuple[int, bytes, Attr]]:
        if directory == COMMITS_INO:
            yield from self.list_commits(after)
            return
        commit = directory >> SHIFT
        snapshot = self.snapshot(commit)
        for cookie, dentry in snapshot.cookies(directory & LOW, after):
            yield cookie, dentry.name, self._attr(snapshot, commit, dentry.ino)

    def parent(self, directory: int) -> int:
        if directory == COMMITS_INO:
            return ROOT_INO
        commit, ino = directory >> SHIFT, directory & LOW
        if ino == ROOT_INO:
            return COMMITS_INO
        return commit << SHIFT | self.snapshot(commit).inode(ino).parent

    def readlink(self, ino: int) -> bytes:
        commit, inode = ino >> SHIFT, ino & LOW
        if commit == SYMLINK:
            return id_name(inode).encode()
        return self.snapshot(commit).readlink(inode)

    def read(self, ino: int, offset: int, size: int) -> bytes:
        return self.snapshot(ino >> SHIFT).read(ino & LOW, offset, size)

    # Extended attributes

    def xattrs(self, ino: int) -> dict[bytes, bytes]:
        """Facts of the commit for its directory, beside what the root itself had."""
        if ino == COMMITS_INO or ino >> SHIFT == SYMLINK:
            return {}
        commit, inode = ino >> SHIFT, ino & LOW
        found = self.snapshot(commit).xattrs(inode)
        if inode == ROOT_INO:
            found |= self._commit_facts(self._record(commit))
        return found

    def _commit_facts(self, record: Record) -> dict[bytes, bytes]:
        found: dict[str, object] = {
            "id": int(record.id),
            "time_ns": record.time_ns,
            "parent": int(record.parent_id),
            "branch": BRANCH,
            "offset": int(record.offset),
            "bytes": RECORD_SIZE + record.length,
        }
        result = {XATTR_PREFIX + name.encode(): str(value).encode() for name, value in found.items()}
        try:
            made = facts(self.store, record)
        except CommitfsError:
            made = None
        if made is not None:
            result[XATTR_PREFIX + b"uid"] = str(made.uid).encode()
            result[XATTR_PREFIX + b"pid"] = str(made.pid).encode()
            result[XATTR_PREFIX + b"program"] = made.program
        return result
