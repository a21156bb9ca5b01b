"""Stored nodes: the C codec against the reference in Python, and hostile bytes (N1 to N7)."""

import struct
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from commitfs.errors import CorruptError
from commitfs.format.node import (
    BODY_MAX,
    KEY_MAX,
    LEVEL_MAX,
    NO_ROOT,
    STORED_MAX,
    VALUE_MAX,
    Entry,
    Root,
    decode_node,
    encode_node,
    join_entries,
    split_entries,
)
from commitfs.native import crc32c, ffi, lib
from commitfs.store.nodes import Nodes
from tests.support.lz4_block import decompress, literals_only, one_byte_repeated

Decode = Callable[[bytes, int], list[Entry]]


class OneNode:
    """A log with nothing in it but one node."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    def read(self, offset: int, length: int) -> bytes:
        return self.stored


def c_decode(stored: bytes, level: int, crc: int | None = None) -> list[Entry]:
    """What C makes of a node whose pointer has the right checksum, unless `crc` says otherwise."""
    crc = crc32c(stored) if crc is None else crc
    return Nodes(OneNode(stored)).entries(Root(8192, len(stored), level, crc))


def c_encode(level: int, entries: Sequence[Entry]) -> bytes:
    body = join_entries(entries)
    out = ffi.new("uint8_t[]", lib.CFS_ENCODED_MAX)
    lz4 = ffi.gc(lib.LZ4_createStream(), lib.LZ4_freeStream)
    size = lib.cfs_node_encode(level, body, len(body), len(entries), out, lz4)
    return bytes(ffi.buffer(out, size))


def python_decode(stored: bytes, level: int) -> list[Entry]:
    return decode_node(stored, level, decompress)


def fitting(entries: Sequence[Entry]) -> list[Entry]:
    """As many as one node holds."""
    taken: list[Entry] = []
    room = BODY_MAX
    for key, value in entries:
        room -= 4 + len(key) + len(value)
        if room < 0:
            break
        taken.append((key, value))
    return taken


# Long values of few different bytes, so that some nodes are worth compressing.
VALUES = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda b, n: b * n, st.binary(min_size=1, max_size=4), st.integers(0, VALUE_MAX // 4)),
    st.binary(min_size=VALUE_MAX, max_size=VALUE_MAX),
)
KEYS = st.one_of(st.binary(min_size=1, max_size=20), st.binary(min_size=KEY_MAX, max_size=KEY_MAX))
LEAVES = (
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=60)
    .map(lambda entries: fitting(sorted(entries.items())))
    .filter(bool)
)
ROOTS = st.builds(
    Root,
    st.integers(1, 2**62 - 1),
    st.integers(9, STORED_MAX),
    st.integers(0, LEVEL_MAX - 1),
    st.integers(0, 2**32 - 1),
)


@st.composite
def internals(draw: st.DrawFn) -> tuple[int, list[Entry]]:
    level = draw(st.integers(1, LEVEL_MAX))
    keys = sorted(draw(st.sets(KEYS, max_size=60)))
    below = [draw(ROOTS) for _ in range(1 + len(keys))]
    pointers = [Root(at.offset, at.length, level - 1, at.crc).pack() for at in below]
    return level, fitting(list(zip([b"", *keys], pointers, strict=True)))


NODES = st.one_of(LEAVES.map(lambda entries: (0, entries)), internals())


# ------------------------------------------------------------------ round trips


@given(node=NODES)
def test_c_and_python_read_what_the_other_wrote(node: tuple[int, list[Entry]]) -> None:
    level, entries = node
    by_c, by_python = c_encode(level, entries), encode_node(level, entries)
    for stored in (by_c, by_python):
        assert c_decode(stored, level) == entries
        assert python_decode(stored, level) == entries
    # N3: raw if compression does not make it shorter.
    assert len(by_c) <= len(by_python)
    assert (by_c == by_python) == (by_c[3] == 0)


@given(root=ROOTS)
def test_pointer_round_trip(root: Root) -> None:
    assert len(root.pack()) == 16
    assert Root.unpack(root.pack()) == root


def test_no_root_packs_to_zeros() -> None:
    assert NO_ROOT.pack() == bytes(16)


@given(entries=LEAVES)
def test_bodies_round_trip(entries: list[Entry]) -> None:
    assert split_entries(join_entries(entries)) == entries


@pytest.mark.parametrize(
    "entries",
    [
        [(b"k", b"")],
        [(b"k" * KEY_MAX, b"v" * VALUE_MAX), (b"l" * KEY_MAX, b"w" * VALUE_MAX)],
        [(struct.pack(">H", n), b"") for n in range(BODY_MAX // 6)],
        [(b"a", b"1"), (b"a\0", b"2"), (b"a\0\0", b"3"), (b"b", b"")],
        [(b"\x7f", b""), (b"\x80", b""), (b"\xff" * KEY_MAX, b"")],
    ],
    ids=["smallest", "longest entries", "most entries", "prefixes", "unsigned order"],
)
def test_extremes(entries: list[Entry]) -> None:
    for stored in (c_encode(0, entries), encode_node(0, entries)):
        assert len(stored) <= STORED_MAX
        assert c_decode(stored, 0) == python_decode(stored, 0) == entries


# ------------------------------------------------------------------ golden: must be read for ever

GOLDEN_LEAF = bytes.fromhex("434e00000c000200 01000200 61 0102 01000000 62")
GOLDEN_INTERNAL = bytes.fromhex(
    "434e01017a00040071000010000020000100b190010000040302011100101000510000000202070052"
    "00000500220a008f910100000806040225000132090024250096920100000c090603084a0032030026"
    "1c008093010000100c0804"
)


@pytest.mark.parametrize("decode", [c_decode, python_decode])
def test_golden_nodes(decode: Decode) -> None:
    assert decode(GOLDEN_LEAF, 0) == [(b"a", b"\x01\x02"), (b"b", b"")]
    ino = bytes(7) + b"\x02\x02" + bytes(7)
    keys = [b"", ino + b"\x05", ino + b"\x09", bytes(7) + b"\x03"]
    below = [Root(8192 + 512 * i, 400 + i, 0, 0x01020304 * (i + 1)) for i in range(4)]
    assert decode(GOLDEN_INTERNAL, 1) == [(key, at.pack()) for key, at in zip(keys, below, strict=True)]


def test_golden_checksums() -> None:
    assert [crc32c(GOLDEN_LEAF), crc32c(GOLDEN_INTERNAL)] == [0x9B3C8973, 0xB77C9F44]


# ------------------------------------------------------------------ damage and hostile bytes

SAMPLES = [
    (0, [(b"key%d" % n, b"value" * n) for n in range(9)]),
    (0, [(bytes([n]), bytes([n, n * 7 % 256, n * 31 % 256])) for n in range(20)]),
    (1, [(b"", Root(9000, 800, 0, 1).pack()), (b"m", Root(9800, 700, 0, 2).pack())]),
]


@pytest.mark.parametrize(("level", "entries"), SAMPLES)
def test_every_flipped_bit_is_rejected(level: int, entries: list[Entry]) -> None:
    """N7: the pointer's checksum covers each of them."""
    stored = c_encode(level, entries)
    crc = crc32c(stored)
    for bit in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            c_decode(bytes(damaged), level, crc)


@pytest.mark.parametrize(("level", "entries"), SAMPLES)
@pytest.mark.parametrize("decode", [c_decode, python_decode])
def test_cut_anywhere_is_rejected(decode: Decode, level: int, entries: list[Entry]) -> None:
    """Even where the checksum of what is left is right."""
    for stored in (c_encode(level, entries), encode_node(level, entries)):
        for length in range(len(stored)):
            with pytest.raises(CorruptError):
                decode(stored[:length], level)
        with pytest.raises(CorruptError):
            decode(stored + b"\0", level)


def header(level: int, codec: int, length: int, count: int, magic: bytes = b"CN") -> bytes:
    return struct.pack("<2sBBHH", magic, level, codec, length, count)


def leaf(*entries: tuple[bytes, bytes], **changed: int) -> bytes:
    """A raw leaf of `entries`, whatever they are."""
    body = join_entries(entries)
    fields = {"level": 0, "codec": 0, "length": len(body), "count": len(entries), **changed}
    return header(fields["level"], fields["codec"], fields["length"], fields["count"]) + body


def internal(*children: tuple[bytes, Root]) -> bytes:
    return leaf(*((key, at.pack()) for key, at in children), level=1)


GOOD = Root(9000, 300, 0, 5)
A, B = (b"a", b"1"), (b"b", b"2")
PACKED = one_byte_repeated(b"z", 60)
LONG = header(0, 1, 68, 1) + literals_only(b"\x01\x00\x3f\x00k" + b"v" * 63)
HOSTILE = {
    "magic": (0, header(0, 0, 6, 1, b"NC") + join_entries([A])),
    "level not the pointer's": (0, leaf(A, level=1)),
    "level not the pointer's, lower": (1, leaf((b"", GOOD.pack()))),
    "level too high": (LEVEL_MAX + 1, leaf((b"", Root(9000, 300, LEVEL_MAX, 5).pack()), level=LEVEL_MAX + 1)),
    "codec": (0, leaf(A, codec=2)),
    "raw called compressed": (0, leaf(A, codec=1)),
    "no entries": (0, leaf()),
    "no entries, some bytes": (0, leaf(A, count=0)),
    "fewer entries than there are": (0, leaf(A, B, count=1)),
    "more entries than there are": (0, leaf(A, B, count=3)),
    "count beyond all bounds": (0, leaf(A, count=65535)),
    "length too short": (0, leaf(A, length=5)),
    "length too long": (0, leaf(A, length=7)),
    "body too long": (0, leaf(*((b"%05d" % n, b"v" * 400) for n in range(5)))),
    "key too long": (0, leaf((b"k" * (KEY_MAX + 1), b""))),
    "value too long": (0, leaf((b"k", b"v" * (VALUE_MAX + 1)))),
    "key reaches over the end": (0, header(0, 0, 6, 1) + struct.pack("<HH", 3, 0) + b"ab"),
    "value reaches over the end": (0, header(0, 0, 6, 1) + struct.pack("<HH", 1, 2) + b"ab"),
    "lengths cut off": (0, header(0, 0, 8, 2) + struct.pack("<HH", 1, 0) + b"abc"),
    "empty key in a leaf": (0, leaf((b"", b"v"))),
    "keys equal": (0, leaf(A, A)),
    "keys descend": (0, leaf(B, A)),
    "key before its prefix": (0, leaf((b"ab", b""), (b"a", b""))),
    "keys ordered as if signed": (0, leaf((b"\x80", b""), (b"\x7f", b""))),
    "first key of an internal node": (1, internal((b"a", GOOD))),
    "second key empty": (1, internal((b"", GOOD), (b"", GOOD))),
    "pointer too short": (1, leaf((b"", GOOD.pack()[:15]), level=1)),
    "pointer too long": (1, leaf((b"", GOOD.pack() + b"\0"), level=1)),
    "pointer to nothing": (1, internal((b"", Root(0, 300, 0, 5)))),
    "pointer to a node not stored": (1, internal((b"", Root(1 << 62, 300, 0, 5)))),
    "pointer beyond the log": (1, internal((b"", Root(2**64 - 1, 300, 0, 5)))),
    "pointer to a header alone": (1, internal((b"", Root(9000, 8, 0, 5)))),
    "pointer to too much": (1, internal((b"", Root(9000, STORED_MAX + 1, 0, 5)))),
    "pointer to its own level": (1, internal((b"", Root(9000, 300, 1, 5)))),
    "second pointer bad": (1, internal((b"", GOOD), (b"m", Root(0, 300, 0, 5)))),
    "compressed to no less than the body": (0, LONG),
    "compressed, length short of it": (0, header(0, 1, 59, 1) + PACKED),
    "compressed, length beyond it": (0, header(0, 1, 61, 1) + PACKED),
    "compressed, match before the data": (0, header(0, 1, 40, 1) + b"\x1f\x01\x02\x00\x05\x50abcde"),
    "compressed, literals over the end": (0, header(0, 1, 40, 1) + b"\xf0\x10abc"),
    "compressed, endless length": (0, header(0, 1, 40, 1) + b"\xf0" + b"\xff" * 20),
    "compressed, nothing": (0, header(0, 1, 40, 1) + b"\x00"),
    "a bomb": (0, header(0, 1, BODY_MAX, 1) + one_byte_repeated(b"z", 60_000)),
}


@pytest.mark.parametrize("decode", [c_decode, python_decode])
@pytest.mark.parametrize(("level", "stored"), HOSTILE.values(), ids=HOSTILE)
def test_nonsense_is_rejected(decode: Decode, level: int, stored: bytes) -> None:
    with pytest.raises(CorruptError):
        decode(stored, level)


def test_the_hostile_ones_are_near_misses() -> None:
    """What they are made from is accepted, so that it is the one thing named that is refused."""
    many = [(b"%05d" % n, b"v" * 400) for n in range(4)]
    for level, stored in [
        (0, leaf(A, B)),
        (0, leaf(*many)),
        (1, internal((b"", GOOD))),
        (LEVEL_MAX, leaf((b"", Root(9000, 300, LEVEL_MAX - 1, 5).pack()), level=LEVEL_MAX)),
        (1, internal((b"", Root(2**62 - 1, STORED_MAX, 0, 5)))),
        (1, internal((b"", Root(1, 9, 0, 5)))),
        (0, leaf((b"k" * KEY_MAX, b"v" * VALUE_MAX))),
    ]:
        assert c_decode(stored, level) == python_decode(stored, level)
    body = b"\x01\x00\x37\x00z" + b"z" * 55
    assert decompress(one_byte_repeated(b"z", 60), 60) == b"z" * 60
    packed = b"\x5f" + body[:5] + b"\x01\x00" + bytes([60 - 5 - 5 - 4 - 15]) + literals_only(b"z" * 5)
    for decode in (c_decode, python_decode):
        assert decode(header(0, 1, 60, 1) + packed, 0) == [(b"z", b"z" * 55)]


@given(level=st.integers(0, 3), body=st.binary(min_size=1, max_size=80), count=st.integers(0, 12))
@example(level=0, body=join_entries([A, B]), count=2)
def test_any_raw_body_gets_one_verdict(level: int, body: bytes, count: int) -> None:
    """C accepts exactly what the reference accepts, and reads the same in it."""
    stored = header(level, 0, len(body), count) + body
    assert verdict(c_decode, stored, level) == verdict(python_decode, stored, level)


@given(node=NODES, random=st.randoms(), changes=st.integers(1, 4))
def test_changed_nodes_get_one_verdict(node: tuple[int, list[Entry]], random: Random, changes: int) -> None:
    level, entries = node
    stored = bytearray(encode_node(level, entries))
    for _ in range(changes):
        # The first bytes of an entry are lengths; most of what there is to break lies near the front.
        stored[random.randrange(min(len(stored), random.choice([8, 16, 64, 2048])))] = random.randrange(256)
    assume(stored[3] != 1)
    assert verdict(c_decode, bytes(stored), level) == verdict(python_decode, bytes(stored), level)


@given(node=NODES, random=st.randoms(), changes=st.integers(1, 6))
def test_changed_compressed_nodes_never_read_as_other_than_they_say(
    node: tuple[int, list[Entry]], random: Random, changes: int
) -> None:
    """The library is stricter about how a block ends than the decoder here: what C accepts is compared."""
    level, entries = node
    stored = bytearray(c_encode(level, entries))
    for _ in range(changes):
        stored[random.randrange(len(stored))] = random.randrange(256)
    found = verdict(c_decode, bytes(stored), level)
    if found is not None:
        assert found == verdict(python_decode, bytes(stored), level)


@given(block=st.binary(max_size=120), length=st.integers(0, 65535), count=st.integers(0, 65535))
def test_any_bytes_as_a_block(block: bytes, length: int, count: int) -> None:
    stored = header(0, 1, length, count) + block
    found = verdict(c_decode, stored, 0)
    if found is not None:
        assert found == verdict(python_decode, stored, 0)


def verdict(decode: Decode, stored: bytes, level: int) -> list[Entry] | None:
    try:
        return decode(stored, level)
    except CorruptError:
        return None


def test_the_reference_decoder_of_blocks_is_right() -> None:
    for data in (b"", b"abc", bytes(300), b"abcd" * 200, Random(1).randbytes(600)):
        assert decompress(literals_only(data), len(data)) == data
    assert decompress(one_byte_repeated(b"q", 1000), 1000) == b"q" * 1000
    with pytest.raises(ValueError, match="too long"):
        decompress(one_byte_repeated(b"q", 1000), 999)
