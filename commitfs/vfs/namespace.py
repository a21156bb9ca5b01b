"""Operations on names: they change the live tree at once and are staged until the next commit.

Each looks and refuses first and changes then (L4); none awaits (L3).  What takes a commit point of its
own beside the change (rename and link of a file with pending contents) is decided in vfs.py.
"""

import errno
import stat
from collections.abc import Iterator

from commitfs.errors import CorruptError, FsError
from commitfs.format.inode import INLINE_MAX, Blob, Inode, decode_dentry
from commitfs.format.keys import (
    BACKREF,
    DENTRY,
    ROOT_INO,
    backref_key,
    dentry_key,
    inode_key,
    inode_range,
    type_range,
)
from commitfs.store.tree import Batch, Tree
from commitfs.vfs.api import Ctx
from commitfs.vfs.content import Pending, detach
from commitfs.vfs.live import HIDDEN, Live, Node, check_name

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
LINK_MAX = 0xFFFFFFFF - 1


def _free_place(live: Live, parent: Node, name: bytes) -> int:
    """The cookie a new name gets here; raises FsError unless it may be made."""
    check_name(name)
    if parent.dead:
        raise FsError(errno.ENOENT)
    if parent.ino == ROOT_INO and name in HIDDEN:
        raise FsError(errno.EPERM)
    return live.new_cookie(parent.ino, name)


def _taken_place(live: Live, parent: Node, name: bytes) -> tuple[Node, int]:
    """(node, cookie) of a name that is about to be taken away."""
    check_name(name)
    if parent.ino == ROOT_INO and name in HIDDEN:
        raise FsError(errno.EPERM)
    found = live.find(parent.ino, name)
    if found is None:
        raise FsError(errno.ENOENT)
    return live.node(found[0]), found[1]


def _new_inode(live: Live, parent: Node, mode: int, ctx: Ctx, cookie: int, now: int) -> Inode:
    directory = stat.S_ISDIR(mode)
    gid = ctx.gid
    if parent.attr.mode & stat.S_ISGID:
        gid = parent.attr.gid
        if directory:
            mode |= stat.S_ISGID
    return Inode(
        mode=mode,
        nlink=2 if directory else 1,
        uid=ctx.uid,
        gid=gid,
        size=0,
        stored=0,
        atime_ns=now,
        mtime_ns=now,
        ctime_ns=now,
        changed=int(live.store.next_id),
        parent=parent.ino,
        cookie=cookie,
    )


def create(live: Live, parent_ino: int, name: bytes, mode: int, ctx: Ctx) -> Node:
    """A new regular file that is open: fresh, so in no commit before its first commit point (P4)."""
    parent = live.directory(parent_ino)
    live.check_writable()
    cookie = _free_place(live, parent, name)
    now = live.now()
    attr = _new_inode(live, parent, stat.S_IFREG | stat.S_IMODE(mode), ctx, cookie, now)
    node = Node(live.numbers.take(parent, directory=False), attr, None)
    node.pending = Pending(0)
    node.xattrs = {}
    live.pin(node)
    _place_fresh(live, node, parent, name, cookie)
    live.touch_parent(parent, now, 1)
    return node


def make(
    live: Live, parent_ino: int, name: bytes, mode: int, ctx: Ctx, *, rdev: int = 0, target: bytes = b""
) -> Node:
    """A directory, symlink, device, fifo, socket, or an empty file by mknod: staged."""
    parent = live.directory(parent_ino)
    live.check_writable()
    cookie = _free_place(live, parent, name)
    if len(target) >= 4096:
        raise FsError(errno.ENAMETOOLONG)
    directory = stat.S_ISDIR(mode)
    path = live.paths.child(parent_ino, name)
    now = live.now()
    attr = _new_inode(live, parent, mode, ctx, cookie, now)
    with live.changing(*live.name_keys(parent_ino, cookie)):
        ino = live.numbers.take(parent, directory)
        if target:
            long = len(target) > INLINE_MAX
            attr = attr._replace(size=len(target), target=Blob(0, len(target), 0) if long else target)
            if long:
                live.blobs[inode_key(ino)] = target
        elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            attr = attr._replace(extra=rdev)
        node = Node(ino, attr, attr)
        live.add_name(parent, name, cookie, node)
        live.save(node)
        live.touch_parent(parent, now, 1, 1 if directory else 0)
        live.save(parent)
        op = "mkdir" if directory else "symlink" if stat.S_ISLNK(mode) else "mknod"
        live.changed(op, path)
    live.keep(node)
    return node


def _place_fresh(live: Live, node: Node, parent: Node, name: bytes, cookie: int) -> None:
    """Name a file that is in no commit; memory keeps its directory as long as it is."""
    live.fresh.add(node, parent.ino, name, cookie)
    live.pin(parent)


def land(live: Live, node: Node, into: Tree | Batch | None = None) -> None:
    """Bring a fresh file's name into the tree (or a batch for it): part of its first commit point, with
    which its inode follows."""
    fresh = node.fresh
    if fresh is None:
        return
    parent = live.node(fresh.parent)
    live.fresh.lift(node)
    node.saved = node.attr
    live.add_name(parent, fresh.name, fresh.cookie, node, into)
    live.save(parent, into)
    live.unpin(parent)
    for name, value in (node.xattrs or {}).items():
        live.save_xattr(node.ino, name, value)
    node.xattrs = None


def link(live: Live, ino: int, parent_ino: int, name: bytes) -> Node:
    """A further name of a file that is in the tree."""
    parent = live.directory(parent_ino)
    live.check_writable()
    node = live.node(ino)
    if node.is_dir:
        raise FsError(errno.EPERM)
    if node.attr.nlink == 0:
        raise FsError(errno.ENOENT)
    if node.attr.nlink >= LINK_MAX:
        raise FsError(errno.EMLINK)
    cookie = _free_place(live, parent, name)
    source = live.paths.of(node)
    path = live.paths.child(parent_ino, name)
    now = live.now()
    places = [(parent_ino, cookie), (node.attr.parent, node.attr.cookie)]
    keys = [key for place in places for key in live.name_keys(*place)]
    with live.changing(*keys, inode_key(ino), backref_key(ino, parent_ino, cookie)):
        land(live, node)
        live.add_name(parent, name, cookie, node)
        live.tree.put(backref_key(ino, parent_ino, cookie), b"")
        node.attr = node.attr._replace(nlink=node.attr.nlink + 1, ctime_ns=now)
        live.save(node)
        live.touch_parent(parent, now, 1)
        live.save(parent)
        live.changed("link", path, source=source)
    return node


def _keys_of(live: Live, parent: Node, cookie: int, node: Node, *, removed: bool = False) -> list[bytes]:
    """Keys that change when a name of `node` moves, or goes (`removed`)."""
    keys = list(live.name_keys(parent.ino, cookie))
    if node.fresh is not None:
        return keys
    if removed and (node.is_dir or node.attr.nlink <= 1):
        return keys + [key for key, _ in live.tree.scan(*inode_range(node.ino))]
    keys += (inode_key(node.ino), backref_key(node.ino, parent.ino, cookie))
    if heir := next(live.tree.scan(*type_range(node.ino, BACKREF)), None):
        keys.append(heir[0])
    elif removed and (parent.ino, cookie) == (node.attr.parent, node.attr.cookie):
        raise CorruptError(f"inode {node.ino} has more links than names")
    return keys


def _take_away(live: Live, parent: Node, name: bytes, cookie: int, node: Node, now: int) -> None:
    """Remove one name of `node`; the parent's own attributes are the caller's."""
    old = node.pending
    if node.fresh is not None:
        live.fresh.lift(node)
        node.attr = node.attr._replace(nlink=0, ctime_ns=now)
    else:
        live.remove_name(parent, name, cookie, node)
        if node.is_dir:
            live.bury(node, now)
        else:
            if node.attr.nlink <= 1:
                # Whoever has it open can still read it, or open it again through /proc/self/fd.
                known = node.handles or live.lookups.get(node.ino)
                keep = known and stat.S_ISREG(node.attr.mode)
                node.pending = detach(live.tree, node.ino, node.attr.size, old) if keep else None
            live.drop_link(node, (parent.ino, cookie), now)
    if node.dead:
        live.on_dead(node, old)
    live.unpin(node)


def unlink(live: Live, parent_ino: int, name: bytes) -> None:
    parent = live.directory(parent_ino)
    live.check_writable()
    node, cookie = _taken_place(live, parent, name)
    if node.is_dir:
        raise FsError(errno.EISDIR)
    now = live.now()
    if node.fresh is not None:
        _take_away(live, parent, name, cookie, node, now)
        live.touch_parent(parent, now, -1)
        live.unpin(parent)
        return
    path = live.paths.child(parent_ino, name)
    with live.changing(*_keys_of(live, parent, cookie, node, removed=True)):
        _take_away(live, parent, name, cookie, node, now)
        live.touch_parent(parent, now, -1)
        live.save(parent)
        live.changed("unlink", path)


def is_empty(live: Live, directory: Node) -> bool:
    if live.fresh.count(directory.ino):
        return False
    return next(live.tree.scan(*type_range(directory.ino, DENTRY)), None) is None


def rmdir(live: Live, parent_ino: int, name: bytes) -> None:
    parent = live.directory(parent_ino)
    live.check_writable()
    node, cookie = _taken_place(live, parent, name)
    if not node.is_dir:
        raise FsError(errno.ENOTDIR)
    if not is_empty(live, node):
        raise FsError(errno.ENOTEMPTY)
    path = live.paths.child(parent_ino, name)
    now = live.now()
    with live.changing(*_keys_of(live, parent, cookie, node, removed=True)):
        _take_away(live, parent, name, cookie, node, now)
        live.touch_parent(parent, now, -1, -1)
        live.save(parent)
        live.changed("rmdir", path)


def _is_below(live: Live, ino: int, ancestor: int) -> bool:
    seen = set()
    while ino != ROOT_INO:
        if ino == ancestor:
            return True
        if ino in seen:
            raise CorruptError(f"directory {ino} lies below itself")
        seen.add(ino)
        ino = live.node(ino).attr.parent
    return ancestor == ROOT_INO


def rename(live: Live, parent_ino: int, name: bytes, to_ino: int, to_name: bytes, flags: int) -> Node | None:
    """Returns the node that was moved, None where there was nothing to do."""
    if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE) or flags == RENAME_NOREPLACE | RENAME_EXCHANGE:
        raise FsError(errno.EINVAL)
    parent, to_parent = live.directory(parent_ino), live.directory(to_ino)
    live.check_writable()
    node, cookie = _taken_place(live, parent, name)
    check_name(to_name)
    if to_parent.dead:
        raise FsError(errno.ENOENT)
    if to_ino == ROOT_INO and to_name in HIDDEN:
        raise FsError(errno.EPERM)
    found = live.find(to_ino, to_name)
    target = live.node(found[0]) if found else None
    exchange = bool(flags & RENAME_EXCHANGE)
    if target is not None and flags & RENAME_NOREPLACE:
        raise FsError(errno.EEXIST)
    if target is None and exchange:
        raise FsError(errno.ENOENT)
    if node.is_dir and parent_ino != to_ino and _is_below(live, to_ino, node.ino):
        raise FsError(errno.EINVAL)
    if target is not None:
        if exchange:
            if target.is_dir and parent_ino != to_ino and _is_below(live, parent_ino, target.ino):
                raise FsError(errno.EINVAL)
        else:
            if target is node:
                return None
            if target.is_dir:
                if not node.is_dir:
                    raise FsError(errno.EISDIR)
                if not is_empty(live, target):
                    raise FsError(errno.ENOTEMPTY)
            elif node.is_dir:
                raise FsError(errno.ENOTDIR)
    source, path = live.paths.child(parent_ino, name), live.paths.child(to_ino, to_name)
    now = live.now()
    if target is not None and exchange:
        assert found is not None
        _exchange(live, (parent, name, cookie, node), (to_parent, to_name, found[1], target), now)
        live.changed("exchange", path, source=source)
        return node
    keys = _keys_of(live, parent, cookie, node)
    if target is not None:
        assert found is not None
        keys += _keys_of(live, to_parent, found[1], target, removed=True)
    else:
        keys += live.name_keys(to_ino, live.new_cookie(to_ino, to_name))
    with live.changing(*keys):
        if node.is_dir:
            live.paths.forget()
        if target is not None:
            assert found is not None
            _take_away(live, to_parent, to_name, found[1], target, now)
            live.touch_parent(to_parent, now, -1, -1 if target.is_dir else 0)
        _move(live, parent, name, cookie, node, to_parent, to_name, now)
        live.save(parent)
        if to_parent is not parent:
            live.save(to_parent)
        live.changed("rename", path, source=source)
    return node


def _move(
    live: Live, parent: Node, name: bytes, cookie: int, node: Node, to_parent: Node, to_name: bytes, now: int
) -> None:
    to_cookie = live.new_cookie(to_parent.ino, to_name)
    turn = 1 if node.is_dir else 0
    live.touch_parent(parent, now, -1, -turn)
    live.touch_parent(to_parent, now, 1, turn)
    if node.fresh is not None:
        live.fresh.lift(node)
        live.unpin(parent)
        _place_fresh(live, node, to_parent, to_name, to_cookie)
        node.attr = node.attr._replace(parent=to_parent.ino, cookie=to_cookie, ctime_ns=now)
        return
    live.remove_name(parent, name, cookie, node)
    live.add_name(to_parent, to_name, to_cookie, node)
    live.move_link(node, (parent.ino, cookie), (to_parent.ino, to_cookie))
    node.attr = node.attr._replace(ctime_ns=now)
    live.save(node)


Place = tuple[Node, bytes, int, Node]
"""(directory, name, cookie, node)"""


def _exchange(live: Live, one: Place, two: Place, now: int) -> None:
    """Both dentries keep their cookies and swap what they lead to.  Neither node may be fresh: vfs.py
    makes it a commit point, and lands them first."""
    keys = [key for parent, _, cookie, node in (one, two) for key in _keys_of(live, parent, cookie, node)]
    with live.changing(*keys):
        live.paths.forget()
        for (parent, name, cookie, node), (_, _, _, other) in ((one, two), (two, one)):
            land(live, node)
            land(live, other)
            live.add_name(parent, name, cookie, other)
        for (parent, _, cookie, node), (to_parent, _, to_cookie, other) in ((one, two), (two, one)):
            if node is not other:
                live.move_link(node, (parent.ino, cookie), (to_parent.ino, to_cookie))
            node.attr = node.attr._replace(ctime_ns=now)
            if node.is_dir and parent is not to_parent:
                live.touch_parent(parent, now, 0, -1)
                live.touch_parent(to_parent, now, 0, 1)
        for parent, _, _, node in (one, two):
            live.touch_parent(parent, now, 0)
            live.save(node)
            live.save(parent)


def entries(live: Live, directory: Node, after: int) -> Iterator[tuple[int, bytes, int]]:
    """(cookie, name, inode) of a directory's entries with cookies above `after`, ascending."""
    fresh = live.fresh.behind(directory.ino, after)
    if directory.dead:
        return
    high = type_range(directory.ino, DENTRY)[1]
    for key, value in live.tree.scan(dentry_key(directory.ino, after + 1), high):
        cookie = int.from_bytes(key[9:17], "big")
        while fresh and fresh[-1][0] < cookie:
            yield fresh.pop()
        dentry = decode_dentry(value)
        yield cookie, dentry.name, dentry.ino
    while fresh:
        yield fresh.pop()
