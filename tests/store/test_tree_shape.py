"""What a tree costs: nodes stored, read and held; what becomes of hostile ones."""

import threading
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitfs.errors import CorruptError
from commitfs.format.node import (
    KEY_MAX,
    LEVEL_MAX,
    NO_ROOT,
    STORED_MAX,
    VALUE_MAX,
    Entry,
    Root,
    encode_node,
    join_entries,
)
from commitfs.native import crc32c, lib
from commitfs.store.nodes import Nodes
from commitfs.store.tree import Tree, diff, readable
from tests.support.memory_log import MemoryLog
from tests.support.trees_in_log import Model, brute_force, nodes_of


def key(n: int) -> bytes:
    return n.to_bytes(8, "big") + b"\1"


def filled(model: Model, log: MemoryLog, max_bytes: int = 1 << 24) -> Tree:
    """A built tree that holds `model`."""
    tree = Tree(Nodes(log, max_bytes), NO_ROOT)
    for at, value in model.items():
        tree.put(at, value)
    tree.build(log.place)
    return tree


def sample(count: int, size: int = 60) -> Model:
    random = Random(count)
    return {key(n): random.randbytes(size) for n in range(count)}


def cold(tree: Tree, log: MemoryLog) -> Tree:
    """The same, nothing of it loaded."""
    log.reads = 0
    return Tree(Nodes(log), tree.root)


# ------------------------------------------------------------------ bounds of keys and values


@pytest.mark.parametrize(
    ("at", "value"), [(b"", b""), (b"k" * (KEY_MAX + 1), b""), (b"k", b"v" * (VALUE_MAX + 1))]
)
def test_sizes_out_of_bounds_are_refused(at: bytes, value: bytes) -> None:
    log = MemoryLog()
    for model in ({}, sample(3)):
        tree = filled(model, log)
        with pytest.raises(ValueError, match="bounds"):
            tree.put(at, value)
        assert not tree.dirty
        assert tree.get(b"k" * (KEY_MAX + 1)) is None
        assert tree.get(b"") is None
        assert tree.delete(b"") is False


def test_the_empty_tree() -> None:
    log = MemoryLog()
    tree = Tree(Nodes(log), NO_ROOT)
    assert tree.get(b"a") is None
    assert not tree.delete(b"a")
    assert list(tree.scan(b"")) == list(tree.scan_back(b"\xff")) == []
    assert (tree.dirty, tree.estimate()) == (False, 0)
    assert tree.build(log.place) == NO_ROOT
    tree.put(b"a", b"")
    assert tree.get(b"a") == b""
    assert tree.delete(b"a")
    assert tree.dirty
    assert tree.build(log.place) == NO_ROOT
    assert len(log.data) == 8192


def test_emptying_a_built_tree_is_a_change() -> None:
    log = MemoryLog()
    tree = filled(sample(500), log)
    for n in range(500):
        assert tree.delete(key(n))
    assert tree.dirty
    assert tree.estimate() == 0
    assert tree.build(log.place) == NO_ROOT
    assert not tree.dirty


# ------------------------------------------------------------------ what is stored


def test_a_put_stores_its_path_alone() -> None:
    log = MemoryLog()
    tree = filled(sample(5000), log)
    levels = tree.root.level + 1
    assert levels >= 3
    for n in range(0, 5000, 97):
        placed: list[bytes] = []
        tree.put(key(n), b"other".ljust(60))

        def place(data: bytes, placed: list[bytes] = placed) -> int:
            placed.append(data)
            return log.place(data)

        tree.build(place)
        # Children come before their parents.
        assert [data[2] for data in placed] == list(range(levels))


def test_keys_in_order_fill_their_nodes() -> None:
    log = MemoryLog()
    tree = filled(sample(5000), log)
    bodies = [len(join_entries(entries)) for _, entries in nodes_of(tree.nodes, tree.root)]
    assert sum(bodies) / len(bodies) > 0.9 * 1016


@pytest.mark.parametrize("streams", [2, 5])
def test_keys_in_several_orders_at_once_fill_their_nodes(streams: int) -> None:
    """As when the files of several directories are written in turn."""
    log = MemoryLog()
    random = Random(streams)
    # What was there before lies between.
    model = {key(stream << 32 | 0xFFFFFFFF): random.randbytes(60) for stream in range(streams)}
    for n in range(3000):
        model[key((n % streams) << 32 | n)] = random.randbytes(60)
    tree = filled(model, log)
    leaves = [len(join_entries(entries)) for at, entries in nodes_of(tree.nodes, tree.root) if at.level == 0]
    assert sum(leaves) / len(leaves) > 0.85 * 1016


def test_keys_in_any_order_fill_two_thirds() -> None:
    log = MemoryLog()
    random = Random(8)
    tree = filled({random.randbytes(9): random.randbytes(60) for _ in range(5000)}, log)
    bodies = [len(join_entries(entries)) for _, entries in nodes_of(tree.nodes, tree.root)]
    assert sum(bodies) / len(bodies) > 0.6 * 1016


def test_deleting_most_leaves_few_nodes() -> None:
    log = MemoryLog()
    tree = filled(sample(5000), log)
    for n in range(5000):
        if n % 50:
            assert tree.delete(key(n))
    tree.build(log.place)
    found = nodes_of(tree.nodes, tree.root)
    assert sum(len(entries) for at, entries in found if at.level == 0) == 100
    # 100 entries of 77 bytes: at least 8 leaves.
    assert len(found) < 30
    assert tree.root.level <= 2


def test_deleting_reads_no_neighbours() -> None:
    """They are merged with only when they are at hand."""
    log = MemoryLog()
    built = filled(sample(5000), log)
    for n in (0, 1234, 4999):
        tree = cold(built, log)
        assert tree.delete(key(n))
        assert log.reads == built.root.level + 1


def test_separators_are_as_short_as_can_be() -> None:
    """Long keys that differ early do not make internal nodes long."""
    log = MemoryLog()
    model = {n.to_bytes(2, "big") + b"-" * 250: b"" for n in range(2000)}
    tree = filled(model, log)
    for at, entries in nodes_of(tree.nodes, tree.root):
        if at.level:
            assert all(len(separator) <= 2 for separator, _ in entries)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), longest=st.booleans())
def test_worst_sizes_fit_in_nodes(seed: int, longest: bool) -> None:
    """N2, for entries that are as long, and differ as much in length, as they may."""
    random = Random(seed)
    log = MemoryLog()
    tree = Tree(Nodes(log), NO_ROOT)
    model: Model = {}
    for _ in range(400):
        at = b"k" * random.choice([0, 1, 120, KEY_MAX - 3] if not longest else [KEY_MAX - 3])
        at += random.randrange(600).to_bytes(3, "big")
        model[at] = random.randbytes(random.choice([0, 1, VALUE_MAX // 2, VALUE_MAX]))
        tree.put(at, model[at])
    tree.build(log.place)
    found = nodes_of(tree.nodes, tree.root)
    assert [entry for at, entries in found if at.level == 0 for entry in entries] == sorted(model.items())
    assert max(len(join_entries(entries)) for _, entries in found) <= 2 * (4 + KEY_MAX + VALUE_MAX)


def test_many_levels() -> None:
    """Keys that are alike but for their ends leave no more than three nodes below one."""
    log = MemoryLog()
    model = {b"k" * (KEY_MAX - 2) + n.to_bytes(2, "big"): b"v" * VALUE_MAX for n in range(1500)}
    tree = filled(model, log)
    assert tree.root.level >= 6
    again = Tree(Nodes(log, 0), tree.root)
    assert list(again.scan(b"")) == sorted(model.items())
    assert list(again.scan_back(b"\xff")) == sorted(model.items(), reverse=True)
    for at in model:
        assert again.delete(at)
    assert again.build(log.place) == NO_ROOT


def test_estimate_is_near_what_is_stored() -> None:
    log = MemoryLog()
    tree = filled(sample(5000), log)
    before = len(log.data)
    for n in range(0, 5000, 10):
        tree.put(key(n), Random(n).randbytes(60))
    bound = tree.estimate()
    tree.build(log.place)
    assert bound * 0.5 < len(log.data) - before <= bound


# ------------------------------------------------------------------ what is read and held


def test_a_get_reads_its_path_once() -> None:
    log = MemoryLog()
    model = sample(5000)
    built = filled(model, log)
    tree = cold(built, log)
    for _ in range(2):
        assert tree.get(key(1234)) == model[key(1234)]
        assert log.reads == built.root.level + 1


def test_built_nodes_are_at_hand() -> None:
    log = MemoryLog()
    tree = filled(sample(5000), log)
    tree.put(key(77), b"x")
    tree.build(log.place)
    log.reads = 0
    assert Tree(tree.nodes, tree.root).get(key(77)) == b"x"
    assert log.reads == 0


def test_the_cache_holds_no_more_than_it_may() -> None:
    log = MemoryLog()
    model = sample(20_000)
    built = filled(model, log)
    nodes = Nodes(log, 200_000)
    tree = Tree(nodes, built.root)
    assert sum(1 for _ in tree.scan(b"")) == 20_000
    assert 150_000 < nodes.bytes_held <= 200_000
    least = Nodes(log, 0)
    assert sum(1 for _ in Tree(least, built.root).scan(b"")) == 20_000
    assert len(least) == lib.CFS_NODES_MIN


def test_what_is_used_stays() -> None:
    log = MemoryLog()
    built = filled(sample(20_000), log)
    tree = Tree(Nodes(log, 100_000), built.root)
    tree.get(key(5))
    for n in range(0, 20_000, 10):
        tree.get(key(n))
        log.reads = 0
        tree.get(key(5))
        assert log.reads == 0


def test_forgotten_nodes_are_read_again() -> None:
    log = MemoryLog()
    tree = filled(sample(2000), log)
    half = len(log.data)
    first = tree.root
    tree.put(key(3), b"changed")
    tree.build(log.place)
    tree.nodes.forget(half)
    log.reads = 0
    assert Tree(tree.nodes, tree.root).get(key(3)) == b"changed"
    assert log.reads == first.level + 1
    log.reads = 0
    assert Tree(tree.nodes, first).get(key(3)) != b"changed"
    assert log.reads == 0


def test_bytes_written_anew_are_not_taken_from_the_cache() -> None:
    """A pointer names a place and a checksum: another node at the same place is another node."""
    log = MemoryLog()
    tree = filled({b"a": b"1"}, log)
    del log.data[8192:]
    other = Tree(tree.nodes, NO_ROOT)
    other.put(b"a", b"2")
    root = other.build(log.place)
    assert root.offset == tree.root.offset
    assert Tree(other.nodes, other.root).get(b"a") == b"2"
    with pytest.raises(CorruptError):
        Tree(tree.nodes, tree.root).get(b"a")


def test_entries_and_children() -> None:
    log = MemoryLog()
    model = sample(100)
    tree = filled(model, log)
    nodes = Nodes(log)
    below = nodes.children(tree.root)
    assert below[0][0] == b""
    assert [entry for _, at in below for entry in nodes.entries(at)] == sorted(model.items())


@pytest.mark.parametrize(
    "root",
    [
        Root(9000, 0, 0, 0),
        Root(9000, STORED_MAX + 1, 0, 0),
        Root(9000, 300, LEVEL_MAX + 1, 0),
        Root(9000, 300, 255, 0),
        Root(1 << 62, 300, 0, 0),
        Root(2**64 - 1, 300, 0, 0),
        Root(1 << 40, 300, 0, 0),
    ],
)
def test_roots_that_cannot_be(root: Root) -> None:
    log = MemoryLog()
    filled(sample(100), log)
    with pytest.raises(CorruptError):
        Tree(Nodes(log), root).get(b"a")
    with pytest.raises(CorruptError):
        Nodes(log).entries(root)


# ------------------------------------------------------------------ diff


def test_diff_reads_only_what_differs() -> None:
    log = MemoryLog()
    tree = filled(sample(20_000), log)
    first = tree.root
    tree.put(key(7), b"changed")
    tree.delete(key(12_345))
    tree.put(key(19_000) + b"new", b"new")
    second = tree.build(log.place)
    log.reads = 0
    found = list(diff(Nodes(log), first, second))
    assert [(at, new) for at, _, new in found] == [
        (key(7), b"changed"),
        (key(12_345), None),
        (key(19_000) + b"new", b"new"),
    ]
    # Three paths in each tree, the roots shared.
    assert log.reads <= 2 * (1 + 3 * first.level)
    log.reads = 0
    assert list(diff(Nodes(log), second, second)) == []
    assert log.reads == 0


def test_diff_skips_what_lies_beside_new_nodes() -> None:
    """A run of new keys makes new nodes and shifts all behind them, which is still seen to be shared."""
    log = MemoryLog()
    tree = filled(sample(20_000), log)
    first = tree.root
    new = {key(9_999) + n.to_bytes(2, "big"): Random(n).randbytes(60) for n in range(500)}
    for at, value in new.items():
        tree.put(at, value)
    second = tree.build(log.place)
    shared = {at.offset for at, _ in nodes_of(Nodes(log), first)}
    added = [at for at, _ in nodes_of(Nodes(log), second) if at.offset not in shared]
    for a, b in ((first, second), (second, first)):
        log.reads = 0
        found = list(diff(Nodes(log), a, b))
        assert [at for at, _, _ in found] == sorted(new)
        assert log.reads <= len(added) + 12


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([0, 60, VALUE_MAX]))
def test_diff_against_brute_force(seed: int, size: int) -> None:
    random = Random(seed)
    log = MemoryLog()
    tree = Tree(Nodes(log), NO_ROOT)
    model: Model = {}
    seen: list[tuple[Root, Model]] = [(NO_ROOT, {})]
    for _ in range(5):
        for _ in range(random.choice([1, 5, 300])):
            at = key(random.randrange(400))
            if random.random() < 0.6:
                model[at] = random.randbytes(size)
                tree.put(at, model[at])
            else:
                tree.delete(at)
                model.pop(at, None)
        seen.append((tree.build(log.place), dict(model)))
    for a, before in seen:
        for b, after in seen:
            assert list(diff(tree.nodes, a, b)) == brute_force(before, after)


# ------------------------------------------------------------------ hostile trees


def place_node(log: MemoryLog, level: int, entries: list[Entry]) -> Root:
    stored = encode_node(level, entries)
    return Root(log.place(stored), len(stored), level, crc32c(stored))


def test_keys_out_of_place_end_a_scan() -> None:
    """Nodes each right in itself, put together wrongly: an error, never an endless scan."""
    log = MemoryLog()
    low = place_node(log, 0, [(b"a", b""), (b"b", b"")])
    high = place_node(log, 0, [(b"m", b""), (b"n", b"")])
    ascending = Tree(Nodes(log), place_node(log, 1, [(b"", high.pack()), (b"z", low.pack())]))
    with pytest.raises(CorruptError, match="order"):
        list(ascending.scan(b""))
    descending = Tree(Nodes(log), place_node(log, 1, [(b"", high.pack()), (b"a", low.pack())]))
    with pytest.raises(CorruptError, match="order"):
        list(descending.scan_back(b"z"))


def hostile_tree(log: MemoryLog, random: Random) -> Root:
    """Nodes each right in itself that do not belong together; some of them in several places."""
    below = []
    for count in (1, 2, 3, 3):
        leaf = {hostile_key(random): random.randbytes(random.choice([0, 3, 400])) for _ in range(count)}
        below.append(place_node(log, 0, sorted(leaf.items())))
    for level in range(1, random.randrange(2, 6)):
        made = []
        for _ in range(4):
            separators = [b"", *sorted({hostile_key(random) for _ in range(random.choice([0, 1, 3]))})]
            made.append(place_node(log, level, [(at, random.choice(below).pack()) for at in separators]))
        below = made
    return below[0]


def hostile_key(random: Random) -> bytes:
    return b"k" * random.choice([0, 0, 1, 255, KEY_MAX - 2]) + random.randbytes(random.choice([1, 2]))


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_changing_a_hostile_tree_breaks_nothing_else(seed: int) -> None:
    """Any result but a crash.  (Sanitizers look closer: tests/torture/sanitized.py.)"""
    random = Random(seed)
    log = MemoryLog()
    tree = Tree(Nodes(log), hostile_tree(log, random))
    for _ in range(200):
        at = hostile_key(random)
        try:
            match random.randrange(6):
                case 0 | 1:
                    tree.put(at, random.randbytes(random.choice([0, 10, VALUE_MAX])))
                case 2:
                    tree.delete(at)
                case 3:
                    tree.get(at)
                case 4:
                    list(tree.scan(at))
                case 5:
                    list(tree.scan_back(at))
            if random.randrange(40) == 0:
                tree = Tree(Nodes(log), tree.build(log.place))
        except CorruptError:
            tree = Tree(Nodes(log), hostile_tree(log, random))
    # What is sound elsewhere is still served.
    sound = filled(sample(50), log)
    assert list(sound.scan(b"")) == sorted(sample(50).items())


# ------------------------------------------------------------------ threads


def test_trees_in_several_threads_share_a_cache() -> None:
    log = MemoryLog()
    model = sample(3000)
    root = filled(model, log).root
    nodes = Nodes(log, 0)
    wrong: list[object] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        random = Random(seed)
        tree = Tree(nodes, root)
        changed = dict(model)
        start.wait()
        try:
            for _ in range(3000):
                at = key(random.randrange(3000))
                if random.random() < 0.1:
                    changed[at] = random.randbytes(9)
                    tree.put(at, changed[at])
                if tree.get(at) != changed[at]:
                    wrong.append((seed, at))
            if list(tree.scan(b"")) != sorted(changed.items()):
                wrong.append(seed)
        except Exception as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ------------------------------------------------------------------ damaged nodes


def leaves_of(tree: Tree) -> list[tuple[bytes, Root]]:
    """(lowest key, leaf) of a tree of two levels, in order."""
    assert tree.root.level == 1
    return tree.nodes.children(tree.root)


def test_a_scan_needs_no_node_beyond_its_bounds() -> None:
    """Each run of keys of one leaf is read although its neighbours are damaged."""
    model, log = sample(60), MemoryLog()
    made = filled(model, log)
    leaves = leaves_of(made)
    assert len(leaves) > 3
    for at, (_, leaf) in enumerate(leaves[1:-1], 1):
        damaged = MemoryLog()
        damaged.data[:] = log.data
        for neighbour in (leaves[at - 1][1], leaves[at + 1][1]):
            damaged.data[neighbour.offset + 9] ^= 1
        inside = made.nodes.entries(leaf)
        low, high = inside[0][0], leaves[at + 1][0]
        tree = cold(made, damaged)
        assert list(tree.scan(low, high)) == inside
        assert list(tree.scan_back(inside[-1][0] + b"\0", low)) == inside[::-1]
        with pytest.raises(CorruptError):
            list(tree.scan(low, high + b"\xff" * 8))
        with pytest.raises(CorruptError):
            list(tree.scan_back(low, b""))


def test_what_is_readable_and_what_is_not() -> None:
    model, log = sample(60), MemoryLog()
    made = filled(model, log)
    leaves = leaves_of(made)
    hurt = leaves[2][1]
    inside = made.nodes.entries(hurt)
    log.data[hurt.offset + 9] ^= 1
    gaps: list[tuple[bytes, bytes | None]] = []
    tree = cold(made, log)
    found = list(readable(tree.nodes, tree.root, b"", b"\xff", lambda lo, hi, _: gaps.append((lo, hi))))
    assert found == [entry for entry in sorted(model.items()) if entry not in inside]
    assert gaps == [(leaves[2][0], leaves[3][0])]
    assert len(list(readable(tree.nodes, tree.root, key(0), key(2), lambda *gap: None))) == 2


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_diff_goes_on_behind_a_node_it_cannot_read(side: str) -> None:
    before, log = sample(60), MemoryLog()
    tree = filled(before, log)
    old = tree.root
    after = dict(before)
    for n in (5, 30, 55):
        after[key(n)] = b"changed"
        tree.put(key(n), b"changed")
    new = tree.build(log.place)
    hurt = next(
        leaf for low, leaf in reversed(tree.nodes.children(old if side == "a" else new)) if low <= key(30)
    )
    inside = {at for at, _ in tree.nodes.entries(hurt)}
    log.data[hurt.offset + 9] ^= 1
    gaps: list[bytes] = []
    told = {f"gap_{side}": lambda low, high, why: gaps.append(low)}
    found = list(diff(Nodes(log), old, new, **told))
    with pytest.raises(CorruptError):
        list(diff(Nodes(log), old, new))
    expected = sorted(inside | {key(5), key(30), key(55)})
    assert [change[0] for change in found] == expected
    assert all(change[1:] == (before[change[0]], b"changed") for change in found if None not in change)
    assert {change[0] for change in found if None in change} == inside
    assert len(gaps) == 1
