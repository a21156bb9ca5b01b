"""The tree against a dict: every operation, rebuilt, reopened, with caches too small and reads that fail."""

from collections.abc import Callable
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from commitfs.errors import CorruptError
from commitfs.format.node import KEY_MAX, NO_ROOT, VALUE_MAX, Entry, Root
from commitfs.native import lib
from commitfs.store.nodes import Nodes
from commitfs.store.tree import BATCH_MAX, Batch, Tree, diff
from tests.support.memory_log import MemoryLog
from tests.support.trees_in_log import brute_force, nodes_of

Model = dict[bytes, bytes]
TINY = 0
"""The least a cache can be made to hold: CFS_NODES_MIN nodes."""


class FailingLog(MemoryLog):
    """Reads fail, by an error or by damage, once `good_reads` have been done."""

    good_reads = 1 << 60
    damage = False

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        self.good_reads -= 1
        if self.good_reads >= 0:
            return data
        if self.damage:
            return data[:-1] + bytes([data[-1] ^ 1])
        raise OSError(5, "injected")


def expected(model: Model, lo: bytes = b"", hi: bytes | None = None) -> list[Entry]:
    return sorted((k, v) for k, v in model.items() if lo <= k and (hi is None or k < hi))


# ------------------------------------------------------------------ the machine

KEYS = st.one_of(
    st.binary(min_size=1, max_size=3),
    st.integers(0, 400).map(lambda n: n.to_bytes(8, "big") + b"\1"),
    st.tuples(st.integers(0, 4), st.integers(0, 300)).map(
        lambda at: at[0].to_bytes(8, "big") + b"\2" + at[1].to_bytes(8, "big")
    ),
    st.integers(0, 60).map(lambda n: b"\0" * 8 + b"\4" + b"n" * (KEY_MAX - 11) + n.to_bytes(2, "big")),
)
SIZES = st.sampled_from([0, 1, 16, 60, 200, VALUE_MAX - 1, VALUE_MAX])


class TreeMachine(RuleBasedStateMachine):
    @initialize(max_bytes=st.sampled_from([TINY, TINY, 1 << 20]), seed=st.integers(0, 2**32))
    def begin(self, max_bytes: int, seed: int) -> None:
        self.random = Random(seed)
        self.max_bytes = max_bytes
        self.log = FailingLog()
        self.nodes = Nodes(self.log, max_bytes)
        self.tree = Tree(self.nodes, NO_ROOT)
        self.model: Model = {}
        self.built: list[tuple[Root, Model]] = [(NO_ROOT, {})]

    def value(self, size: int) -> bytes:
        return self.random.randbytes(size // 2) + b"." * (size - size // 2)

    # -------- changes

    @rule(key=KEYS, size=SIZES)
    def put(self, key: bytes, size: int) -> None:
        value = self.value(size)
        self.tree.put(key, value)
        self.model[key] = value

    @rule(first=st.integers(0, 400), count=st.integers(2, 200), size=SIZES, kind=st.sampled_from([1, 2]))
    def put_many(self, first: int, count: int, size: int, kind: int) -> None:
        for n in range(first, first + count):
            key = n.to_bytes(8, "big") + bytes([kind])
            value = self.value(size)
            self.tree.put(key, value)
            self.model[key] = value

    @rule(count=st.integers(2, 200), size=SIZES)
    def put_anywhere(self, count: int, size: int) -> None:
        for _ in range(count):
            self.put(self.random.randbytes(self.random.choice([1, 2, 9, 40])), size)

    @rule()
    def put_again(self) -> None:
        """Putting what is there changes nothing."""
        dirty, estimate = self.tree.dirty, self.tree.estimate()
        for key in self.random.sample(sorted(self.model), min(5, len(self.model))):
            self.tree.put(key, self.model[key])
        assert (self.tree.dirty, self.tree.estimate()) == (dirty, estimate)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        assert self.tree.delete(key) == (self.model.pop(key, None) is not None)

    @rule(edits=st.lists(st.tuples(KEYS, st.none() | SIZES), max_size=20))
    def apply(self, edits: list[tuple[bytes, int | None]]) -> None:
        batch = Batch()
        for key, size in edits:
            if size is None:
                batch.delete(key)
                self.model.pop(key, None)
            else:
                self.model[key] = self.value(size)
                batch.put(key, self.model[key])
        self.tree.apply(batch)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=BATCH_MAX), good_reads=st.integers(0, 12))
    def apply_all_or_nothing(self, keys: list[bytes], good_reads: int) -> None:
        """T6: a node that cannot be read leaves the tree as it was."""
        self.nodes.forget(0)
        before, edits = self.tree.dirty, self.tree.edits
        batch = Batch()
        for key in keys:
            batch.put(key, b"from a batch")
        self.log.good_reads = good_reads
        try:
            self.tree.apply(batch)
        except (OSError, CorruptError):  # whichever way the log fails since a rule above
            assert (self.tree.dirty, self.tree.edits) == (before, edits)
        else:
            self.model.update(dict.fromkeys(keys, b"from a batch"))
        finally:
            self.log.good_reads = 1 << 60

    @rule(keys=st.lists(KEYS, min_size=1, max_size=BATCH_MAX))
    def touched_is_at_hand(self, keys: list[bytes]) -> None:
        """T5: what was touched needs no more reading."""
        self.nodes.forget(0)
        self.tree.touch(*keys)
        self.log.good_reads = 0
        for key in keys:
            assert self.tree.get(key) == self.model.get(key)
        self.log.good_reads = 1 << 60

    @rule(part=st.sampled_from([0.1, 0.5, 0.9, 1.0]), ordered=st.sampled_from([1, -1, 0]))
    def delete_many(self, part: float, ordered: int) -> None:
        keys = sorted(self.model)
        keys = keys[: int(len(keys) * part)][:: ordered or 1]
        if not ordered:
            self.random.shuffle(keys)
        for key in keys:
            assert self.tree.delete(key)
            del self.model[key]

    # -------- building

    def next_offset(self, one_run: bool) -> int:
        return -(-len(self.log.data) // 8) * 8 if one_run else 0

    @rule(one_run=st.booleans())
    def build(self, one_run: bool) -> None:
        bound = self.tree.estimate()
        placed = uncompressed = 0

        def place(data: bytes) -> int:
            nonlocal placed, uncompressed
            placed += len(data) + -len(data) % 8
            raw = 8 + int.from_bytes(data[4:6], "little")
            uncompressed += raw + -raw % 8
            return self.log.place(data)

        root = self.tree.build(place, self.next_offset(one_run))
        # T3; and nothing is counted twice or kept that is no longer in the tree.
        assert placed <= bound
        assert one_run or uncompressed == bound
        assert root == self.tree.root
        assert not self.tree.dirty
        assert self.tree.estimate() == 0
        if not self.model:
            assert root == NO_ROOT
        self.built.append((root, dict(self.model)))
        placed = 0
        assert self.tree.build(place) == root
        assert placed == 0

    @precondition(lambda self: self.tree.dirty)
    @rule(good=st.integers(0, 6), one_run=st.booleans())
    def build_fails(self, good: int, one_run: bool) -> None:
        """T2: a build that cannot place a node leaves the tree as it was."""
        root, estimate = self.tree.root, self.tree.estimate()

        def place(data: bytes) -> int:
            nonlocal good
            good -= 1
            if good < 0:
                raise OSError(28, "injected")
            return self.log.place(data)

        try:
            self.tree.build(place, self.next_offset(one_run))
        except OSError:
            assert self.tree.dirty
            assert (self.tree.root, self.tree.estimate()) == (root, estimate)
        else:
            self.built.append((self.tree.root, dict(self.model)))

    @rule(again=st.booleans())
    def reopen(self, again: bool) -> None:
        """From the root of the last build, with an empty cache or the warm one: the rest is lost."""
        if not again:
            self.nodes = Nodes(self.log, self.max_bytes)
        root, model = self.built[-1]
        self.tree = Tree(self.nodes, root)
        self.model = dict(model)

    @rule(random_index=st.integers(0, 1 << 30))
    def go_back(self, random_index: int) -> None:
        """Any earlier tree can be gone on from."""
        root, model = self.built[random_index % len(self.built)]
        self.tree = Tree(self.nodes, root)
        self.model = dict(model)

    # -------- failures

    @rule(
        key=KEYS, good=st.integers(0, 3), damage=st.booleans(), call=st.sampled_from(["get", "put", "delete"])
    )
    def a_read_fails(self, key: bytes, good: int, damage: bool, call: str) -> None:
        """T1: an operation that fails has changed nothing, and can be done again."""
        dirty, estimate = self.tree.dirty, self.tree.estimate()
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: self.tree.get(key),
            "put": lambda: self.tree.put(key, b"put all the same"),
            "delete": lambda: self.tree.delete(key),
        }
        self.log.good_reads, self.log.damage = good, damage
        try:
            calls[call]()
        except (CorruptError, OSError):
            assert (self.tree.dirty, self.tree.estimate()) == (dirty, estimate)
            self.log.good_reads = 1 << 60
            calls[call]()
        self.log.good_reads = 1 << 60
        if call == "put":
            self.model[key] = b"put all the same"
        elif call == "delete":
            self.model.pop(key, None)
        assert self.tree.get(key) == self.model.get(key)

    @rule(good=st.integers(0, 40), back=st.booleans())
    def a_read_fails_while_scanning(self, good: int, back: bool) -> None:
        seen = []
        self.log.good_reads, self.log.damage = good, False
        try:
            for entry in self.tree.scan_back(b"\xff" * 300) if back else self.tree.scan(b""):
                seen.append(entry)  # noqa: PERF402 (what came before an error counts)
        except OSError:
            pass
        self.log.good_reads = 1 << 60
        assert seen == sorted(self.model.items(), reverse=back)[: len(seen)]

    # -------- reading

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.tree.get(key) == self.model.get(key)

    @rule(lo=st.one_of(KEYS, st.just(b"")), hi=st.one_of(KEYS, st.none()))
    def scan(self, lo: bytes, hi: bytes | None) -> None:
        want = expected(self.model, lo, hi)
        assert list(self.tree.scan(lo, hi)) == want
        if hi is not None:
            assert list(self.tree.scan_back(hi, lo)) == want[::-1]

    @rule()
    def fork_sees_the_last_build(self) -> None:
        fork = Tree(self.tree.nodes, self.tree.root)
        root, model = self.tree.root, next(m for r, m in reversed(self.built) if r == self.tree.root)
        assert fork.root == root
        assert list(fork.scan(b"")) == expected(model)

    @rule(one=st.integers(0, 1 << 30), other=st.integers(0, 1 << 30))
    def compare(self, one: int, other: int) -> None:
        (a, before), (b, after) = (self.built[n % len(self.built)] for n in (one, other))
        assert list(diff(self.nodes, a, b)) == brute_force(before, after)

    @invariant()
    def bounds(self) -> None:
        if not hasattr(self, "tree"):
            return
        assert len(self.nodes) <= lib.CFS_NODES_MIN or self.nodes.bytes_held <= self.max_bytes
        assert self.tree.dirty or self.tree.estimate() == 0

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        assert list(self.tree.scan(b"")) == expected(self.model)
        for root, model in self.built[-3:]:
            found = nodes_of(Nodes(self.log), root)
            assert [entry for at, entries in found if at.level == 0 for entry in entries] == expected(model)


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=150, stateful_step_count=30)
