"""What is fuzzed: each parser, with what must hold whatever bytes it is given.

A target takes bytes and says whether they were accepted.  It raises if anything but the documented error
comes out, if what was parsed does not come back from its encoding, or if C and its reference in Python
do not agree.  Checksums are put right where a parser begins by comparing them, as else nothing behind
would ever be reached: the first byte of the input says whether.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import replace

from commitfs import native
from commitfs.errors import CorruptError
from commitfs.format import keys
from commitfs.format.extent import UNIT, Extent, decode_extent, encode_extent
from commitfs.format.facts import Change, Facts, decode_facts, encode_facts, facts_length
from commitfs.format.inode import (
    Blob,
    Dentry,
    Inode,
    decode_allocator,
    decode_dentry,
    decode_inode,
    decode_xattr,
    encode_allocator,
    encode_dentry,
    encode_inode,
    encode_xattr,
)
from commitfs.format.node import LZ4, NO_ROOT, RAW, Root, decode_node, encode_node
from commitfs.format.record import (
    COMMIT,
    FIRST,
    LAST,
    LOG_START,
    RECORD_SIZE,
    STAGE,
    Record,
    WalkState,
    pack,
    parse,
    seal,
)
from commitfs.format.record import walk as reference_walk
from commitfs.format.slot import SLOT_SIZE, Slot, pack_slot, parse_slot
from commitfs.native import crc32c, ffi, lib
from commitfs.store.nodes import Nodes
from commitfs.store.tree import Batch, Tree
from tests.support.lz4_block import decompress
from tests.support.memory_log import MemoryLog

Target = Callable[[bytes], bool]
STORE, SESSION = 0x1111, 0x2222
_COMMIT = Record(COMMIT, FIRST, LOG_START, 1, STORE, SESSION, 40, 7, 0, 0, 0, 0, 0, 9000, 60, 5, 1, 0, 0, 0)


class Broken(Exception):
    """Something that must hold does not."""


def need(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def sealed(data: bytes, length: int, crc_at: int) -> bytes:
    """The bytes behind the first, `length` of them, with the right CRC32C at `crc_at` if the first is odd."""
    body = bytearray(data[1 : 1 + length].ljust(length, b"\0"))
    if data[:1] and data[0] & 1:
        body[crc_at : crc_at + 4] = crc32c(body[:crc_at]).to_bytes(4, "little")
    return bytes(body)


def record(data: bytes) -> bool:
    raw = sealed(data, RECORD_SIZE, RECORD_SIZE - 4)
    found = parse(raw, crc32c)
    if found is None:
        return False
    again, crc = pack(found, crc32c)
    need(parse(again, crc32c) == found._replace(crc=crc), "a record does not come back")
    need(again[:116] == raw[:116] and again[120:124] == raw[120:124], "a record is encoded otherwise")
    return True


def slot(data: bytes) -> bool:
    """Of both formats: the magic says which."""
    body = bytearray(data[1 : 1 + SLOT_SIZE].ljust(SLOT_SIZE, b"\0"))
    if data[:1] and data[0] & 2:  # the head in it, too
        body[252:256] = crc32c(body[128:252]).to_bytes(4, "little")
    found = parse_slot(sealed(data[:1] + bytes(body), SLOT_SIZE, SLOT_SIZE - 4), crc32c)
    if not isinstance(found, Slot):
        return False
    again = parse_slot(pack_slot(found, crc32c), crc32c)
    need(isinstance(again, Slot), "a slot that was packed is none")
    assert isinstance(again, Slot)
    head = found.head
    if head is not None and again.head is not None:
        again = replace(again, head=again.head._replace(crc=head.crc))
    if head is not None and (head.session == 0) != (bytes(body[128:132]) == b"PTR2"):
        return True  # magic and session contradict each other; nothing that is written has that
    need(again == found, "a slot does not come back")
    return True


def value_target(decode: Callable[[bytes], object], encode: Callable[..., bytes]) -> Target:
    def target(data: bytes) -> bool:
        try:
            found = decode(data)
        except CorruptError:
            return False
        need(decode(encode(found)) == found, "a value does not come back")
        return True

    return target


def facts(data: bytes) -> bool:
    length = facts_length(data[1:9].ljust(8, b"\0"))
    if not length:
        return False
    block = sealed(data, length, length - 4)
    try:
        found = decode_facts(block, crc32c)
    except CorruptError:
        return False
    again = encode_facts(found, crc32c)
    need(decode_facts(again, crc32c) == found, "facts do not come back")
    need(len(again) <= len(block), "facts have grown")
    return True


def key(data: bytes) -> bool:
    try:
        ino, kind, rest = keys.split_key(data)
    except ValueError:
        return False
    need(ino.to_bytes(8, "big") + bytes([kind]) + rest == data, "a key does not come back")
    if kind == keys.DENTRY and len(rest) == 8:
        need(keys.dentry_key(ino, keys.key_u64(data)) == data, "a key does not come back")
    if kind == keys.BACKREF and len(rest) == 16:
        need(keys.backref_key(ino, *keys.backref_of(data)) == data, "a key does not come back")
    low, high = keys.inode_range(ino)
    need(not kind < 255 or low <= data < high, "a key lies outside its inode")
    return True


class OneNode:
    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    def read(self, offset: int, length: int) -> bytes:
        return self.stored


_lz4 = ffi.gc(lib.LZ4_createStream(), lib.LZ4_freeStream)
_encoded = ffi.new("uint8_t[]", lib.CFS_ENCODED_MAX)
_nodes = Nodes(OneNode(b""))


def node(data: bytes) -> bool:
    """C against the reference."""
    level, stored = data[0] & 15 if data else 0, data[1:]
    try:
        expected = decode_node(stored, level, decompress)
    except CorruptError:
        expected = None
    _nodes.forget(0)
    _nodes._log = OneNode(stored)
    try:
        found = _nodes.entries(Root(LOG_START, len(stored), level, crc32c(stored)))
    except CorruptError:
        raw = len(stored) > 3 and stored[3] == RAW
        need(expected is None or not raw, "C refuses a node that is sound")
        return False
    # LZ4 takes a match at a distance of 0, which its format does not allow and its reference refuses.
    lax = expected is None and stored[3] == LZ4
    need(found == expected or lax, "C reads a node otherwise than its reference")
    body = b"".join(len(k).to_bytes(2, "little") + len(v).to_bytes(2, "little") + k + v for k, v in found)
    size = lib.cfs_node_encode(level, body, len(body), len(found), _encoded, _lz4)
    again = bytes(ffi.buffer(_encoded, size))
    need(decode_node(again, level, decompress) == found, "a node does not come back")
    return True


def walk(data: bytes) -> bool:
    """C against the reference, over a log whose records have right checksums where the input says so."""
    window = bytearray(data[2:])
    if data[:1] and data[0] & 1:
        at = 0
        while at + RECORD_SIZE <= len(window):
            length = int.from_bytes(window[at + 40 : at + 44], "little")
            body = window[at + RECORD_SIZE : at + RECORD_SIZE + length]
            if data[0] & 2 and window[at + 5] == COMMIT:
                window[at + 44 : at + 48] = crc32c(body).to_bytes(4, "little")
            crc = crc32c(window[at : at + RECORD_SIZE - 4])
            window[at + RECORD_SIZE - 4 : at + RECORD_SIZE] = crc.to_bytes(4, "little")
            at += RECORD_SIZE + length + 7 & ~7
            if data[0] & 4 and at + RECORD_SIZE <= len(window):
                window[at + 120 : at + 124] = crc.to_bytes(4, "little")
    ours, theirs = WalkState.at_start(STORE), WalkState.at_start(STORE)
    result = native.walk(bytes(window), LOG_START, ours)
    expected = reference_walk(bytes(window), LOG_START, theirs, crc32c)
    need(ours == theirs, "C walks elsewhere than its reference")
    commits = sum(found.kind == COMMIT for found in expected.records)
    need((result.need, result.commits) == (expected.need, commits), "C counts otherwise than its reference")
    return bool(result.records)


def tree(data: bytes) -> bool:
    """Operations on a tree of leaves made of the input, below a root whose pointers and checksums fit."""
    log = MemoryLog()
    count = 1 + (data[0] & 3 if data else 0)
    rest = data[2:]
    step = max(len(rest) // count, 1)
    children = []
    for number in range(count):
        stored = rest[number * step : (number + 1) * step][:2048].ljust(9, b"\0")
        at = Root(log.place(stored), len(stored), 0, crc32c(stored))
        children.append((b"%d" % number if number else b"", at.pack()))
    top = encode_node(1, children)
    made = Tree(Nodes(log), Root(log.place(top), len(top), 1, crc32c(top)))
    accepted = True
    for act in (
        lambda: made.get(b"\0" * 9),
        lambda: list(made.scan(b"", b"~")),
        lambda: list(made.scan_back(b"~")),
        lambda: made.put(b"1" + data[1:2], b"value"),
        lambda: made.delete(b"0"),
        lambda: made.put(b"3", bytes(300)),
        lambda: made.build(log.place),
        lambda: list(made.scan(b"")),
    ):
        try:
            act()
        except CorruptError:
            accepted = False
    return accepted


def edits(data: bytes) -> bool:
    """Packed edits and packed keys, as C gets them: all are made, or none."""
    made = Tree(Nodes(MemoryLog()), NO_ROOT)
    made.put(b"key", b"value")
    handle = made._tree
    touched = lib.cfs_tree_touch(handle, data, len(data))
    before = made.edits
    applied = lib.cfs_tree_apply(handle, data, len(data))
    if applied not in (0, -errno.EINVAL) or touched not in (0, -errno.EINVAL):
        raise Broken(f"apply gives {applied}, touch {touched}")
    if applied and (made.edits != before or list(made.scan(b"")) != [(b"key", b"value")]):
        raise Broken("refused edits changed something")
    return applied == 0


TARGETS: dict[str, Target] = {
    "record": record,
    "slot": slot,
    "inode": value_target(decode_inode, encode_inode),
    "dentry": value_target(decode_dentry, encode_dentry),
    "xattr": value_target(decode_xattr, encode_xattr),
    "extent": value_target(decode_extent, encode_extent),
    "allocator": value_target(decode_allocator, encode_allocator),
    "facts": facts,
    "key": key,
    "node": node,
    "walk": walk,
    "tree": tree,
    "edits": edits,
}


def seeds(name: str) -> list[bytes]:
    """Inputs that a target accepts, to begin with."""
    blank = Inode(0o100644, 1, 2, 3, 400, 400, 1, 2, 3, 5, 1, 128)
    leaf = encode_node(0, [(keys.inode_key(n), encode_inode(blank)) for n in range(1, 8)])
    some = Extent(100, 5, 3 * UNIT, 9000, (1, 2, 3))
    if name in ("record", "slot"):
        raw = pack(_COMMIT, crc32c)[0]
        if name == "record":
            return [b"\1" + raw, b"\0" + raw]
        heads = (None, _COMMIT, _COMMIT._replace(session=0))
        made = [Slot(3, STORE, b"u" * 16, 8, 1, LOG_START, head) for head in heads]
        made += [replace(one, earlier=True) for one in made]
        return [bytes([flags]) + pack_slot(one, crc32c) for one in made for flags in (0, 1, 3)]
    if name == "walk":
        return [bytes([flags, 0]) + _log() for flags in range(8)]
    plain: dict[str, list[bytes]] = {
        "inode": [
            encode_inode(blank),
            encode_inode(blank._replace(mode=0o040755, extra=9)),
            encode_inode(blank._replace(mode=0o120777, target=b"target")),
            encode_inode(blank._replace(mode=0o120777, target=Blob(9000, 500, 1))),
            encode_inode(blank._replace(mode=0o060600, extra=2049)),
        ],
        "dentry": [encode_dentry(Dentry(8, 5, 257, b"name"))],
        "xattr": [encode_xattr(b"value"), encode_xattr(Blob(9000, 500, 1))],
        "extent": [encode_extent(some), encode_extent(some.slice(50, 90))],
        "allocator": [encode_allocator(7)],
        "facts": [b"\1" + encode_facts(Facts(1, 2, 3, b"cat", (Change("write", b"a/b", 7),)), crc32c)],
        "key": [keys.dentry_key(5, 128), keys.backref_key(5, 6, 7), keys.xattr_key(5, b"user.x")],
        "node": [b"\0" + leaf, b"\1" + encode_node(1, [(b"", Root(9000, 60, 0, 1).pack())])],
        "tree": [b"\0\0" + leaf, b"\1\0" + leaf + leaf],
        "edits": [b"".join(_batch().edits)],
    }
    if name == "node":
        body = b"".join(b"\x09\0\x20\0" + bytes([n]) * 9 + bytes(32) for n in range(1, 20))
        size = lib.cfs_node_encode(0, body, len(body), 19, _encoded, _lz4)
        plain[name].append(b"\0" + bytes(ffi.buffer(_encoded, size)))
    return plain[name]


def _batch() -> Batch:
    batch = Batch()
    batch.put(b"key", b"another value")
    batch.put(b"key2", bytes(500))
    batch.delete(b"key")
    batch.delete(b"no such key")
    return batch


def _log() -> bytes:
    image = bytearray()
    chain = 0
    for number, (kind, size) in enumerate([(COMMIT, 30), (STAGE, 64), (COMMIT, 0), (COMMIT, 200)], 1):
        body = bytes([number]) * size
        commit = number - (number > 1)
        made, raw = seal(
            _COMMIT._replace(
                kind=kind, offset=LOG_START + len(image), id=commit, length=size, bytes_crc=crc32c(body)
            ),
            session=SESSION,
            flags=LAST | (FIRST if number == 1 else 0),
            synced=0,
            chain=chain,
            checksum=crc32c,
        )
        chain = made.crc
        image += raw + body + bytes(-size % 8)
    return bytes(image)


class Mutator:
    """New inputs out of old ones, those that were accepted above all."""

    KEPT = 128

    def __init__(self, corpus: list[bytes], seed: int) -> None:
        self.corpus = corpus
        self.random = random.Random(seed)

    def next(self) -> bytes:
        rand = self.random
        data = bytearray(rand.choice(self.corpus))
        for _ in range(1 << rand.randrange(4)):
            self._mutate(data, rand)
        return bytes(data[:4096])

    def accepted(self, data: bytes) -> None:
        if len(self.corpus) < self.KEPT:
            self.corpus.append(data)
        elif self.random.random() < 0.05:
            self.corpus[self.random.randrange(self.KEPT // 4, self.KEPT)] = data

    def _mutate(self, data: bytearray, rand: random.Random) -> None:
        pick = rand.randrange(8)
        at = rand.randrange(len(data)) if data else 0
        if pick == 0 and data:
            data[at] ^= 1 << rand.randrange(8)
        elif pick == 1 and data:
            data[at] = rand.randrange(256)
        elif pick == 2:
            width = rand.choice((2, 4, 8))
            number = rand.choice((0, 1, 7, 8, 255, 1 << 15, 1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1))
            data[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, "little")
        elif pick == 3:
            data[at:at] = rand.randbytes(rand.randrange(1, 9))
        elif pick == 4:
            del data[at : at + rand.randrange(1, 17)]
        elif pick == 5 and data:
            length = rand.randrange(1, 65)
            to = rand.randrange(len(data))
            data[to : to + length] = data[at : at + length]
        elif pick == 6:
            other = rand.choice(self.corpus)
            cut = rand.randrange(len(other) + 1)
            data[at:] = other[cut:]
        elif pick == 7 and data:
            width = rand.choice((1, 2, 4))
            number = int.from_bytes(data[at : at + width], "little") + rand.randrange(-16, 17)
            data[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, "little")
