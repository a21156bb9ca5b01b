"""Extents and pending contents against plain bytes (C1 to C3)."""

from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitfs.errors import CorruptError
from commitfs.format.extent import EXTENT_MAX, UNIT, Extent, decode_extent, encode_extent
from commitfs.format.node import NO_ROOT
from commitfs.native import crc32c
from commitfs.store.nodes import Nodes
from commitfs.store.tree import Tree
from commitfs.vfs.content import Pending, cut, detach, extents, make_extent, read_extent, read_tree
from tests.support.memory_log import MemoryLog

INO = 7


def new_tree() -> tuple[MemoryLog, Tree]:
    log = MemoryLog()
    return log, Tree(Nodes(log), NO_ROOT)


def whole(tree: Tree, log: MemoryLog, size: int) -> bytes:
    return bytes(read_tree(tree, log, INO, 0, size)) if size else b""


def check_extents(tree: Tree, size: int) -> int:
    """C1; returns the bytes stored."""
    end = total = 0
    for at, extent in extents(tree, INO, 0, None):
        assert at >= end
        end = at + extent.length
        total += extent.length
    assert end <= size
    return total


OFFSET = st.one_of(
    st.integers(0, 300), st.integers(0, 3 * UNIT), st.integers(EXTENT_MAX - 500, EXTENT_MAX + 500)
)
PIECE = st.builds(
    lambda seed, length: (seed * length)[:length], st.binary(min_size=1, max_size=5), st.integers(1, 2 * UNIT)
)
STEP = st.one_of(
    st.tuples(st.just("write"), OFFSET, PIECE),
    st.tuples(st.just("truncate"), OFFSET, st.just(b"")),
    st.tuples(st.just("spill"), st.just(0), st.just(b"")),
    st.tuples(st.just("commit"), st.just(0), st.just(b"")),
)


@settings(max_examples=150)
@given(st.lists(STEP, max_size=25))
def test_contents_equal_a_plain_byte_string(steps: list[tuple[str, int, bytes]]) -> None:
    log, tree = new_tree()
    model = b""
    committed = b""
    stored = 0
    pending = Pending(0)
    for name, offset, data in steps:
        if name == "write":
            pending.write(offset, data)
            model = model.ljust(offset, b"\0")
            model = model[:offset] + data + model[offset + len(data) :]
        elif name == "truncate":
            if offset < len(model):
                pending.truncate(offset)
            model = model[:offset].ljust(offset, b"\0")
        elif name == "spill":
            for start, run in pending.memory_runs():
                for at in range(0, len(run), EXTENT_MAX):
                    chunk = bytes(run[at : at + EXTENT_MAX])
                    pending.replace(start + at, len(chunk), make_extent(chunk, log.place(chunk), crc32c))
            assert pending.memory == 0
        else:
            stored = pending.apply(tree, tree, log, INO, stored, log.place, crc32c)
            committed = model
            pending = Pending(len(model))
            assert stored == check_extents(tree, len(model))
        assert pending.memory == sum(len(run) for _, run in pending.memory_runs())
        assert pending.starts == sorted(pending.starts)
        seen = bytearray(len(model))
        base = min(pending.base_limit, len(model))
        if base:
            read_tree(tree, log, INO, 0, base, seen, 0)
        pending.overlay(log, seen, 0, len(model))
        assert seen == model
        assert whole(tree, log, len(committed)) == committed
    alone = detach(tree, INO, len(committed), pending)
    seen = bytearray(len(model))
    alone.overlay(log, seen, 0, len(model))
    assert seen == model


def test_the_same_bytes_are_not_stored_again() -> None:
    log, tree = new_tree()
    data = bytes(range(256)) * 5000
    first = Pending(0)
    first.write(0, data)
    stored = first.apply(tree, tree, log, INO, 0, log.place, crc32c)
    tree.build(log.place)
    size = len(log.data)
    again = Pending(len(data))
    again.truncate(0)
    again.write(0, data)
    assert again.apply(tree, tree, log, INO, stored, log.place, crc32c) == len(data)
    assert len(log.data) == size
    assert not tree.dirty
    assert whole(tree, log, len(data)) == data


def test_one_changed_byte_stores_one_chunk() -> None:
    log, tree = new_tree()
    data = bytearray(4 * EXTENT_MAX)
    first = Pending(0)
    first.write(0, data)
    stored = first.apply(tree, tree, log, INO, 0, log.place, crc32c)
    size = len(log.data)
    data[EXTENT_MAX + 5] = 1
    again = Pending(len(data))
    again.truncate(0)
    again.write(0, data)
    again.apply(tree, tree, log, INO, stored, log.place, crc32c)
    assert len(log.data) - size <= EXTENT_MAX + 8
    assert whole(tree, log, len(data)) == data


@given(st.integers(1, EXTENT_MAX), st.data())
@settings(max_examples=60)
def test_a_slice_keeps_what_verifies_it(length: int, data: st.DataObject) -> None:
    log = MemoryLog()
    raw = (bytes(range(251)) * (length // 251 + 1))[:length]
    extent = make_extent(raw, log.place(raw), crc32c)
    low, high = 0, length
    for _ in range(3):
        start = data.draw(st.integers(0, extent.length - 1))
        end = data.draw(st.integers(start + 1, extent.length))
        extent = extent.slice(start, end)
        low, high = low + start, low + end
        assert decode_extent(encode_extent(extent)) == extent
        assert read_extent(log, extent, 0, extent.length) == raw[low:high]


def test_damage_in_an_untouched_part_of_a_unit_is_found() -> None:
    log = MemoryLog()
    extent = make_extent(b"x" * 1000, log.place(b"x" * 1000), crc32c).slice(0, 10)
    log.data[extent.offset + 999] ^= 1
    with pytest.raises(CorruptError):
        read_extent(log, extent, 0, 10)


@pytest.mark.parametrize(
    "extent",
    [
        Extent(1, 0, 1, 8192, ()),
        Extent(0, 0, 1, 8192, (1,)),
        Extent(2, 0, 1, 8192, (1,)),
        Extent(1, UNIT, UNIT + 1, 8192, (1, 2)),
        Extent(1, 0, EXTENT_MAX + 1, 8192, (1,) * 8),
    ],
)
def test_extents_that_make_no_sense_are_refused(extent: Extent) -> None:
    with pytest.raises(CorruptError):
        decode_extent(encode_extent(extent))


def test_cut_in_the_middle_leaves_both_ends() -> None:
    log, tree = new_tree()
    pending = Pending(0)
    pending.write(0, b"a" * 100)
    pending.apply(tree, tree, log, INO, 0, log.place, crc32c)
    assert cut(tree, INO, 40, 60) == 20
    assert whole(tree, log, 100) == b"a" * 40 + bytes(20) + b"a" * 40


class NoMemory:
    """Data for which there is no memory."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        raise MemoryError


@pytest.mark.parametrize(("offset", "length"), [(0, 5), (5, 10), (15, 1000), (995, 5), (2000, 10), (0, 3000)])
def test_a_write_without_memory_changes_nothing(offset: int, length: int) -> None:
    pending = Pending(0)
    for start in (10, 1000, 500):
        pending.write(start, b"x" * 100)
    before = list(pending.starts), [bytes(run) for _, run in pending.memory_runs()], pending.memory
    with pytest.raises(MemoryError):
        pending.write(offset, cast(bytes, NoMemory(length)))
    assert (list(pending.starts), [bytes(run) for _, run in pending.memory_runs()], pending.memory) == before
