"""The most frequent commit of all: one new file, made, written and closed.

`Commits` would make the same bytes (a test compares them); here nothing is asked that would have to be asked
of any other commit, and the bytes are put together in C (native/new_file.c).
"""

from struct import Struct
from typing import Any

from commitfs.format.inode import encode_inode
from commitfs.native import ffi, lib
from commitfs.store.store import Ticket, Txn
from commitfs.vfs.live import Live, Node

_NUMBERS = Struct("=QqqQIIIIII")
_NUMBERS_TYPE = ffi.typeof("cfs_new_file_numbers *")
assert ffi.sizeof("cfs_new_file_numbers") == _NUMBERS.size
_EXTENT_MAX: int = lib.CFS_EXTENT_MAX
_PATH_MAX: int = lib.CFS_NEW_FILE_PATH
_new_file = lib.cfs_new_file


def is_new_file(live: Live, node: Node) -> bool:
    """Whether a commit of this node, and of what is staged, can be made by `commit_new_file`."""
    pending = node.pending
    return (
        node.fresh is not None
        and pending is not None
        and len(pending.runs) == 1
        and type(pending.runs[0]) is bytearray
        and pending.starts[0] == 0
        and len(pending.runs[0]) <= _EXTENT_MAX
        and not node.xattrs
        and not live.changes
        and not live.blobs
        and live.numbers.saved
    )


def commit_new_file(live: Live, txn: Txn, node: Node, who: tuple[int, int, bytes]) -> Ticket | None:
    """Place the commit; what raises before it is placed has changed nothing (L4).  None, too: its path is
    too long for this way."""
    tree = live.tree
    fresh, pending = node.fresh, node.pending
    assert fresh is not None
    assert pending is not None
    run = pending.runs[0]
    assert isinstance(run, bytearray)
    folder, name = fresh.parent, fresh.name
    path = live.paths.child(folder, name)
    if len(path) > _PATH_MAX:
        return None
    parent = live.node(folder)
    now = live.now()
    commit = txn.id
    data = bytes(run)
    attr = node.attr.changed_in(commit, len(data))
    above = saved_above = parent.attr.changed_in(commit)
    others = live.fresh.count(folder) - 1
    if others:
        saved_above = above._replace(size=above.size - others)
    inode, inode_above = encode_inode(attr), encode_inode(saved_above)
    uid, pid, program = who
    program = program[:255]
    packed = _NUMBERS.pack(
        txn.next_offset,
        now,
        attr.size,
        fresh.cookie,
        uid,
        pid,
        commit,
        node.ino,
        folder,
        live.changes_truncated,
    )
    numbers = ffi.from_buffer(_NUMBERS_TYPE, packed)

    def make(handle: Any) -> int:
        return _new_file(
            handle, numbers, program, len(program), path, len(path), len(name),
            inode, len(inode), inode_above, len(inode_above), data, len(data),
        )  # fmt: skip

    edits = tree.edits
    try:
        txn.add(tree.build_with(make))
        live.fresh.lift(node)
        node.attr = node.saved = attr
        node.xattrs = node.pending = None
        parent.attr, parent.saved = above, saved_above
        live.atimes.pop(folder, None)
        ticket = txn.finish(root=tree.root, time_ns=now)
    except BaseException as exc:
        if tree.edits != edits:
            live.half_done(exc)
        raise
    live.unpin(parent)
    live.changes_truncated = False
    return ticket
