"""What an inode is called in a tree of which parts may be damaged."""

from commitfs.errors import CorruptError
from commitfs.format.inode import decode_dentry, decode_inode
from commitfs.format.keys import ROOT_INO, dentry_key, inode_key
from commitfs.store.tree import Tree

DEPTH_MAX = 4096


def path_in(tree: Tree, ino: int) -> bytes:
    """Path of an inode by its primary link, as far as it can be told; what cannot begins with its
    number."""
    parts: list[bytes] = []
    passed: set[int] = set()
    first = ino
    try:
        while ino != ROOT_INO:
            if len(passed) > DEPTH_MAX or ino in passed:
                return b"<inode %d>" % first
            passed.add(ino)
            value = tree.get(inode_key(ino))
            inode = None if value is None else decode_inode(value)
            found = None if inode is None else tree.get(dentry_key(inode.parent, inode.cookie))
            dentry = None if found is None else decode_dentry(found)
            if inode is None or dentry is None or dentry.ino != ino:
                parts.append(b"<inode %d>" % ino)
                break
            parts.append(dentry.name)
            ino = inode.parent
    except CorruptError:
        parts.append(b"<inode %d>" % ino)
    return b"/".join(reversed(parts))


def joined(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


__all__ = ["DEPTH_MAX", "joined", "path_in"]
