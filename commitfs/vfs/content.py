"""File contents: extents in a tree, and what was written since the last commit point.

Invariants
  C1  A tree's extents of one file never overlap and lie below its size.
  C2  `Pending` alone holds what is not yet at a commit point; the tree under it is never touched
      before `Pending.apply`, so a commit of any other file keeps the old contents (P2).
  C3  The runs of a Pending are sorted and never overlap; bytes of the base at or behind `base_limit`
      are gone (truncated), also when the file has grown again.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Protocol

from commitfs.errors import CorruptError
from commitfs.format.extent import EXTENT_MAX, UNIT, Extent, decode_extent, encode_extent
from commitfs.format.keys import EXTENT, extent_key, key_u64, type_range
from commitfs.types import Buffer

SPILL_BYTES = 1 << 20
"""Pending bytes of one file kept in memory; above, they go to a stage."""


class TreeView(Protocol):
    """What is read of a tree."""

    def get(self, key: bytes) -> bytes | None: ...
    def scan(self, lo: bytes, hi: bytes | None = None) -> Iterator[tuple[bytes, bytes]]: ...
    def scan_back(self, hi: bytes, lo: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...


class TreePut(Protocol):
    """Where changes go: a tree, or a batch of them."""

    def put(self, key: bytes, value: bytes) -> None: ...


class TreeEdit(TreeView, TreePut, Protocol):
    """What is changed of one."""

    def delete(self, key: bytes) -> bool: ...


class UnitReader(Protocol):
    def read_checked(self, offset: int, length: int, crc: int, what: str = "data") -> bytes: ...


def extents(tree: TreeView, ino: int, start: int, end: int | None) -> Iterator[tuple[int, Extent]]:
    """(file offset, extent) of the extents that overlap start..end, ascending."""
    low, high = type_range(ino, EXTENT)
    if start > 0:
        for key, value in tree.scan_back(extent_key(ino, start), low):
            at, extent = key_u64(key), decode_extent(value)
            if at + extent.length > start:
                yield at, extent
            break
    if end is not None:
        high = extent_key(ino, end)
    for key, value in tree.scan(extent_key(ino, start), high):
        yield key_u64(key), decode_extent(value)


def read_extent(units: UnitReader, extent: Extent, start: int, end: int) -> bytes:
    """Bytes start..end of an extent.  Every unit they lie in is read whole and verified (P7)."""
    first = (extent.skip + start) // UNIT
    last = (extent.skip + end - 1) // UNIT
    parts = []
    for index in range(first, last + 1):
        at = index * UNIT
        length = min(UNIT, extent.run - at)
        parts.append(units.read_checked(extent.offset + at, length, extent.crcs[index]))
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    skip = extent.skip + start - first * UNIT
    return data if skip == 0 and end - start == len(data) else data[skip : skip + end - start]


def read_tree(
    tree: TreeView,
    units: UnitReader,
    ino: int,
    start: int,
    end: int,
    into: bytearray | None = None,
    origin: int = 0,
) -> bytes | bytearray:
    """Bytes start..end of a file in a tree, holes as zeros; into `into`, whose first byte is the
    file's byte `origin`, where that is given."""
    if into is None:
        found = list(extents(tree, ino, start, end))
        if len(found) == 1:
            at, extent = found[0]
            if at <= start and end <= at + extent.length:
                return read_extent(units, extent, start - at, end - at)
        into, origin = bytearray(end - start), start
    else:
        found = list(extents(tree, ino, start, end))
    for at, extent in found:
        lo, hi = max(at, start), min(at + extent.length, end)
        into[lo - origin : hi - origin] = read_extent(units, extent, lo - at, hi - at)
    return into


def cut(tree: TreeEdit, ino: int, start: int, end: int | None) -> int:
    """Remove start..end (None: all behind start) from a file's extents.  Returns the bytes freed."""
    freed = 0
    for at, extent in list(extents(tree, ino, start, end)):
        stop = at + extent.length
        lo = max(at, start)
        hi = stop if end is None else min(stop, end)
        freed += hi - lo
        if at < start:
            tree.put(extent_key(ino, at), encode_extent(extent.slice(0, start - at)))
        else:
            tree.delete(extent_key(ino, at))
        if hi < stop:
            tree.put(extent_key(ino, hi), encode_extent(extent.slice(hi - at, stop - at)))
    return freed


def make_extent(data: Buffer, offset: int, crc32c: Callable[[Buffer], int]) -> Extent:
    """The extent of `data` stored at a log offset."""
    length = len(data)
    if length <= UNIT:
        return Extent(length, 0, length, offset, (crc32c(data),))
    view = memoryview(data)
    crcs = tuple(crc32c(view[at : at + UNIT]) for at in range(0, length, UNIT))
    return Extent(length, 0, length, offset, crcs)


def chunks(start: int, data: Buffer) -> Iterator[tuple[int, Buffer]]:
    """Cut a run at multiples of EXTENT_MAX, so that a rewrite of the same bytes makes the same extents."""
    if start % EXTENT_MAX + len(data) <= EXTENT_MAX:
        yield start, data
        return
    view = memoryview(data)
    at = 0
    while at < len(view):
        step = EXTENT_MAX - (start + at) % EXTENT_MAX
        yield start + at, view[at : at + step]
        at += step


def same_stored(
    tree: TreeView, units: UnitReader, ino: int, start: int, data: Buffer, crc32c: Callable[[Buffer], int]
) -> Extent | None:
    """The extent of the tree at just this place, if it holds just these bytes already."""
    value = tree.get(extent_key(ino, start))
    if value is None:
        return None
    old = decode_extent(value)
    if old.length != len(data) or old.skip or old.run != old.length:
        return None
    if make_extent(data, old.offset, crc32c).crcs != old.crcs:
        return None
    try:
        return old if read_extent(units, old, 0, old.length) == data else None
    except (CorruptError, OSError):
        return None  # what cannot be read is no reason to refuse its replacement


Run = bytearray | Extent


def _run_length(run: Run) -> int:
    return run.length if isinstance(run, Extent) else len(run)


def _run_slice(run: Run, start: int, end: int) -> Run:
    return run.slice(start, end) if isinstance(run, Extent) else run[start:end]


class Pending:
    """Contents of one file written or truncated since its last commit point, over a base in the tree."""

    __slots__ = ("at_name_change", "base_limit", "memory", "runs", "staged", "starts")

    def __init__(self, base_limit: int) -> None:
        self.base_limit = base_limit
        self.starts: list[int] = []
        self.runs: list[Run] = []
        self.memory = 0
        self.at_name_change = False
        """They were committed with a rename or link of the file: no close owes them a commit any more."""
        self.staged = 0
        """Number of the stager's put that holds the last of its extents; to be durable before a commit
        refers to them."""

    def write(self, offset: int, data: Buffer) -> None:
        """Raises MemoryError, and then nothing has changed."""
        starts, runs = self.starts, self.runs
        length = len(data)
        if starts:
            index = bisect_right(starts, offset) - 1
            if index >= 0:
                run, start = runs[index], starts[index]
                if isinstance(run, bytearray) and offset <= start + len(run):
                    inside = start + len(run) - offset
                    if length <= inside:
                        run[offset - start : offset - start + length] = data
                        return
                    if index == len(runs) - 1:
                        run[offset - start :] = data
                        self.memory += length - inside
                        return
        if starts:
            self._carve(offset, offset + length, bytearray(data))
        else:
            self.starts, self.runs = [offset], [bytearray(data)]
        self.memory += length

    def truncate(self, size: int) -> None:
        """Forget all behind `size`.  Growing needs nothing here: a hole is the absence of runs."""
        self._carve(size, None)
        self.base_limit = min(self.base_limit, size)

    def _carve(self, start: int, end: int | None, instead: Run | None = None) -> None:
        """Forget what lies in start..end (None: all behind), and put `instead` there.  All or nothing."""
        starts, runs = self.starts, self.runs
        first = max(bisect_right(starts, start) - 1, 0)
        if first < len(starts) and starts[first] + _run_length(runs[first]) <= start:
            first += 1
        index = first
        rest_starts: list[int] = []
        rest: list[Run] = []
        freed = 0
        middle = 0
        while index < len(starts) and (end is None or starts[index] < end):
            at, run = starts[index], runs[index]
            stop = at + _run_length(run)
            left = 0
            if at < start:
                rest_starts.append(at)
                rest.append(_run_slice(run, 0, start - at))
                left += start - at
                middle = len(rest)
            if end is not None and stop > end:
                rest_starts.append(end)
                rest.append(_run_slice(run, end - at, stop - at))
                left += stop - end
            if isinstance(run, bytearray):
                freed += len(run) - left
            index += 1
        if instead is not None:
            rest_starts.insert(middle, start)
            rest.insert(middle, instead)
        # Only now, when all the memory it takes was there, but for the lists themselves.
        before = runs[first:index]
        runs[first:index] = rest
        try:
            starts[first:index] = rest_starts
        except MemoryError:
            runs[first : first + len(rest)] = before
            raise
        self.memory -= freed

    def replace(self, start: int, length: int, extent: Extent) -> None:
        """Put stored bytes in place of the same bytes in memory."""
        self._carve(start, start + length, extent)

    def memory_runs(self) -> list[tuple[int, bytearray]]:
        return [(s, r) for s, r in zip(self.starts, self.runs, strict=True) if isinstance(r, bytearray)]

    def overlay(self, units: UnitReader, into: bytearray, start: int, end: int) -> None:
        """Lay the runs within start..end over `into`, whose first byte is the file's byte `start`."""
        index = max(bisect_right(self.starts, start) - 1, 0)
        while index < len(self.starts) and self.starts[index] < end:
            at, run = self.starts[index], self.runs[index]
            lo, hi = max(at, start), min(at + _run_length(run), end)
            if lo < hi:
                if isinstance(run, Extent):
                    into[lo - start : hi - start] = read_extent(units, run, lo - at, hi - at)
                else:
                    into[lo - start : hi - start] = run[lo - at : hi - at]
            index += 1

    def touch(self, tree: TreeView, ino: int) -> None:
        """Read every node that `apply` will read, so that no error comes between its changes."""
        for start, run in zip(self.starts, self.runs, strict=True):
            for _ in extents(tree, ino, start, start + _run_length(run)):
                pass
        for _ in extents(tree, ino, self.base_limit, None):
            pass

    def stored(self) -> int:
        return sum(_run_length(run) for run in self.runs)

    def apply(
        self,
        tree: TreeEdit,
        batch: TreePut,
        units: UnitReader,
        ino: int,
        stored: int,
        add: Callable[[bytes], int],
        crc32c: Callable[[Buffer], int],
    ) -> int:
        """Bring it into the tree, bytes still in memory through `add`.  `stored` is what the tree holds
        of this file, in bytes; returns what it holds afterwards.  Bytes that are there already are
        not stored again.  What needs no look at other extents goes into `batch`, to be made later."""
        final: list[tuple[int, Extent, bool]] = []
        for start, run in zip(self.starts, self.runs, strict=True):
            if isinstance(run, Extent):
                final.append((start, run, False))
                continue
            for at, data in chunks(start, run):
                old = same_stored(tree, units, ino, at, data, crc32c) if stored else None
                if old is None:
                    kept = bytes(data)
                    final.append((at, make_extent(kept, add(kept), crc32c), False))
                else:
                    final.append((at, old, True))
        if stored:
            position = self.base_limit
            for start, extent, kept_there in final:
                stop = start + extent.length
                if position < start and stop > self.base_limit:
                    stored -= cut(tree, ino, position, start)
                position = max(position, stop)
                if not kept_there:
                    stored -= cut(tree, ino, start, stop)
                else:
                    stored -= extent.length
            stored -= cut(tree, ino, position, None)
        for start, extent, kept_there in final:
            if not kept_there:
                batch.put(extent_key(ino, start), encode_extent(extent))
            stored += extent.length
        return stored


def detach(tree: TreeView, ino: int, size: int, pending: Pending | None) -> Pending:
    """A Pending that needs the tree no more: for a file that is unlinked while it is open."""
    limit = size if pending is None else pending.base_limit
    result = Pending(0)
    for at, extent in extents(tree, ino, 0, limit):
        if at + extent.length > limit:
            extent = extent.slice(0, limit - at)
        result.starts.append(at)
        result.runs.append(extent)
    if pending is not None:
        result.staged = pending.staged
        for start, run in zip(pending.starts, pending.runs, strict=True):
            if isinstance(run, Extent):
                result.replace(start, run.length, run)
            else:
                result.write(start, run)
    return result
