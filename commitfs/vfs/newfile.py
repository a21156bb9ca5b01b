"""The most frequent commit of all: one new file, made, written and closed.

`Commits` would make the same bytes (a test compares them); here it is in one piece, without asking what
it would have to ask of any other commit, in about half the time.
"""

import stat

from commitfs.format.extent import EXTENT_MAX, encode_extent
from commitfs.format.facts import Change, Facts, encode_facts
from commitfs.format.inode import Dentry, encode_dentry, encode_inode
from commitfs.format.keys import dentry_key, extent_key, inode_key, tombstone_key
from commitfs.native import crc32c
from commitfs.store.store import Ticket, Txn
from commitfs.store.tree import Batch
from commitfs.vfs.content import make_extent
from commitfs.vfs.live import Live, Node

_REGULAR = stat.S_IFREG >> 12


def is_new_file(live: Live, node: Node) -> bool:
    """Whether a commit of this node, and of what is staged, can be made by `commit_new_file`."""
    pending = node.pending
    return (
        node.fresh is not None
        and pending is not None
        and len(pending.runs) == 1
        and type(pending.runs[0]) is bytearray
        and pending.starts[0] == 0
        and len(pending.runs[0]) <= EXTENT_MAX
        and not node.xattrs
        and not live.blobs
        and live.numbers.saved
    )


def commit_new_file(live: Live, txn: Txn, node: Node, who: tuple[int, int, bytes]) -> Ticket:
    """Place the commit; all that raises before it is placed has changed nothing (L4)."""
    tree = live.tree
    fresh, pending = node.fresh, node.pending
    assert fresh is not None
    assert pending is not None
    ino, folder = node.ino, fresh.parent
    now = live.now()
    commit = txn.id
    parent = live.node(folder)
    change = Change("create", live.paths.child(folder, fresh.name), node.attr.size)
    changes = [change, *live.changes] if live.changes else (change,)
    txn.add(encode_facts(Facts(now, *who, changes, live.changes_truncated), crc32c))
    data = bytes(pending.memory_runs()[0][1])
    extent = make_extent(data, txn.add(data), crc32c)
    attr = node.attr.changed_in(commit, len(data))
    above = saved_above = parent.attr.changed_in(commit)
    others = live.fresh.count(folder) - 1
    if others:
        saved_above = above._replace(size=above.size - others)
    batch = Batch()
    batch.put(dentry_key(folder, fresh.cookie), encode_dentry(Dentry(_REGULAR, commit, ino, fresh.name)))
    batch.delete(tombstone_key(folder, fresh.cookie))
    batch.put(inode_key(folder), encode_inode(saved_above))
    batch.put(extent_key(ino, 0), encode_extent(extent))
    batch.put(inode_key(ino), encode_inode(attr))
    tree.apply(batch)
    try:
        live.fresh.lift(node)
        node.attr = node.saved = attr
        node.xattrs = node.pending = None
        parent.attr, parent.saved = above, saved_above
        live.atimes.pop(folder, None)
        ticket = txn.finish(root=tree.build(txn.add, txn.next_offset), time_ns=now)
    except BaseException as exc:
        live.half_done(exc)
        raise
    live.unpin(parent)
    live.changes.clear()
    live.changes_truncated = False
    return ticket
