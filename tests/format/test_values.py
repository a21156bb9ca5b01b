"""Keys and values of the tree, and facts: round trips, order, nonsense refused."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitfs.errors import CorruptError
from commitfs.format import keys
from commitfs.format.extent import Extent, decode_extent, encode_extent
from commitfs.format.facts import (
    MAX_BYTES,
    OPS,
    Change,
    Facts,
    decode_facts,
    encode_facts,
    facts_length,
)
from commitfs.format.inode import (
    BLOB_MAX,
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
from commitfs.native import crc32c

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TIME = st.integers(-(2**63), 2**63 - 1)
SIZE = st.integers(0, 2**63 - 1)
BLOBS = st.builds(Blob, st.integers(0, 2**63 - BLOB_MAX - 1), st.integers(0, BLOB_MAX), U32)


def inodes(
    kind: int, extra: st.SearchStrategy[int], target: st.SearchStrategy[bytes | Blob]
) -> st.SearchStrategy[Inode]:
    mode = st.integers(0, 0o7777).map(lambda bits: kind | bits)
    return st.builds(Inode, mode, U32, U32, U32, SIZE, U64, TIME, TIME, TIME, U32, U32, U64, extra, target)


NOTHING: st.SearchStrategy[bytes | Blob] = st.just(b"")
ANY_INODE = st.one_of(
    inodes(stat.S_IFREG, st.just(0), NOTHING),
    inodes(stat.S_IFDIR, U32, NOTHING),
    inodes(stat.S_IFCHR, U64, NOTHING),
    inodes(stat.S_IFBLK, U64, NOTHING),
    inodes(stat.S_IFIFO, st.just(0), NOTHING),
    inodes(
        stat.S_IFLNK, st.just(0), st.one_of(st.binary(max_size=440).filter(lambda b: b[:1] != b"\0"), BLOBS)
    ),
)


@given(ANY_INODE)
def test_inodes_come_back(inode: Inode) -> None:
    value = encode_inode(inode)
    assert len(value) <= 512
    assert decode_inode(value) == inode


@given(st.builds(Dentry, st.integers(0, 15), U32, U32, st.binary(max_size=255)))
def test_dentries_come_back(dentry: Dentry) -> None:
    assert decode_dentry(encode_dentry(dentry)) == dentry


@given(st.one_of(st.binary(max_size=440), BLOBS))
def test_xattrs_come_back(value: bytes | Blob) -> None:
    assert decode_xattr(encode_xattr(value)) == value


@given(U32)
def test_the_allocator_comes_back(group: int) -> None:
    assert decode_allocator(encode_allocator(group)) == group


@pytest.mark.parametrize("decode", [decode_inode, decode_dentry, decode_xattr, decode_allocator])
@pytest.mark.parametrize("value", [b"", b"\2", b"\1" + bytes(5)])
def test_values_that_make_no_sense_are_refused(decode: object, value: bytes) -> None:
    assert callable(decode)
    with pytest.raises(CorruptError):
        decode(value)


@given(U32, U32, st.integers(0, 2**62), st.integers(0, 2**62))
def test_keys_sort_by_inode_type_and_number(one: int, two: int, low: int, high: int) -> None:
    assert (keys.dentry_key(one, low) < keys.dentry_key(one, high)) == (low < high)
    assert (keys.extent_key(one, low) < keys.inode_key(two)) == (one < two)
    for key in (keys.dentry_key(one, low), keys.inode_key(one), keys.backref_key(one, two, low)):
        first, end = keys.inode_range(one)
        assert first <= key < end
        assert keys.split_key(key)[0] == one
    assert keys.backref_of(keys.backref_key(one, two, low)) == (two, low)
    assert keys.key_u64(keys.extent_key(one, high)) == high


@given(st.binary(min_size=1, max_size=255))
def test_cookies_leave_room_for_collisions_and_dots(name: bytes) -> None:
    base = keys.cookie_base(name)
    assert keys.FIRST_COOKIE <= base < 2**62
    assert base % keys.COOKIE_SLOTS == 0


CHANGES = st.builds(
    Change,
    st.sampled_from(OPS),
    st.binary(max_size=50),
    st.none() | st.integers(0, 2**62),
    st.binary(max_size=20),
)
FACTS = st.builds(
    Facts, TIME, U32, U32, st.binary(max_size=64), st.lists(CHANGES, max_size=8).map(tuple), st.booleans()
)


@given(FACTS)
def test_facts_come_back(facts: Facts) -> None:
    block = encode_facts(facts, crc32c)
    assert facts_length(block[:8]) == len(block) <= MAX_BYTES
    assert decode_facts(block, crc32c) == facts


def test_facts_that_do_not_fit_are_cut_and_say_so() -> None:
    many = tuple(Change("write", b"p" * 200, n) for n in range(100))
    block = encode_facts(Facts(0, 0, 0, b"x" * 300, many), crc32c)
    assert len(block) <= MAX_BYTES
    facts = decode_facts(block, crc32c)
    assert facts.truncated
    assert facts.changes == many[: len(facts.changes)]
    assert len(facts.program) == 255


@given(FACTS, st.data())
def test_every_flipped_bit_of_facts_is_found(facts: Facts, data: st.DataObject) -> None:
    block = bytearray(encode_facts(facts, crc32c))
    bit = data.draw(st.integers(0, len(block) * 8 - 1))
    block[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptError):
        decode_facts(bytes(block), crc32c)


def test_other_bytes_are_no_facts() -> None:
    assert facts_length(b"\0" * 8) == 0
    assert facts_length(b"FACT\xff\xff\xff\xff") == 0


FAR = [2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize(
    "blob", [Blob(8192, BLOB_MAX + 1, 0), Blob(8192, 2**32 - 1, 0)] + [Blob(n, 1, 0) for n in FAR]
)
def test_long_values_that_can_lie_nowhere_are_refused(blob: Blob) -> None:
    with pytest.raises(CorruptError):
        decode_xattr(encode_xattr(blob))
    link = Inode(stat.S_IFLNK, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, blob)
    with pytest.raises(CorruptError):
        decode_inode(encode_inode(link))


@pytest.mark.parametrize("far", FAR)
def test_extents_and_sizes_beyond_any_file_are_refused(far: int) -> None:
    with pytest.raises(CorruptError):
        decode_extent(encode_extent(Extent(1, 0, 1, far, (0,))))
    if far >= 2**63:
        file = Inode(stat.S_IFREG, 1, 0, 0, far, 0, 0, 0, 0, 0, 0, 0)
        with pytest.raises(CorruptError):
            decode_inode(encode_inode(file))
