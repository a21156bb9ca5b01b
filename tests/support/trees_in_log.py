"""Looking at whole trees, the slow and simple way."""

from commitfs.format.node import STORED_MAX, Entry, Root
from commitfs.store.nodes import Nodes

Model = dict[bytes, bytes]


def nodes_of(nodes: Nodes, root: Root) -> list[tuple[Root, list[Entry]]]:
    """Every node of a tree; checks that its keys lie where the node above says (N8)."""
    found: list[tuple[Root, list[Entry]]] = []

    def visit(at: Root, lo: bytes, hi: bytes | None) -> None:
        entries = nodes.entries(at)
        assert at.length <= STORED_MAX
        found.append((at, entries))
        if at.level == 0:
            assert all(lo <= key and (hi is None or key < hi) for key, _ in entries)
            return
        bounds = [lo] + [key for key, _ in entries[1:]]
        assert all(lo < key and (hi is None or key < hi) for key in bounds[1:])
        for (_, child), low, high in zip(nodes.children(at), bounds, [*bounds[1:], hi], strict=True):
            visit(child, low, high)

    if root.offset:
        visit(root, b"", None)
    return found


def brute_force(before: Model, after: Model) -> list[tuple[bytes, bytes | None, bytes | None]]:
    keys = sorted(before.keys() | after.keys())
    return [(k, before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k)]
