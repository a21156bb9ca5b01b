"""A filesystem that is nothing but dictionaries, and what each commit of it has to hold (P1 to P4).

It knows no errors: the test asks it first whether an operation can work.
"""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Thing:
    """A file, directory or symlink."""

    kind: str
    mode: int
    live: bytes = b""
    committed: bytes | None = None
    """Contents at the last commit point; None for a file that never had one."""
    pending: bool = False
    names: dict[bytes, "Thing"] = field(default_factory=dict)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    links: int = 1
    writers: int = 0
    commits: int = 0
    name_changes: set[int] = field(default_factory=set)
    """Of these, the ones made by a rename or link: no close owes them a commit."""


@dataclass(eq=False)
class Open:
    thing: Thing
    writable: bool
    dirty: bool = False
    owes: int = -1
    """Commits of the file there were when it last wrote or truncated."""


Entry = tuple[str, int, bytes, tuple[tuple[bytes, bytes], ...], int]
"""kind, mode, contents, xattrs, links"""
View = dict[bytes, Entry]


class Model:
    def __init__(self) -> None:
        self.root = Thing("dir", 0o755)
        self.commits: list[View] = [self.view(committed=True)]
        self.staged = False

    def view(self, *, committed: bool) -> View:
        """Everything by path, as a reader of the live tree or of a commit made now sees it."""
        found: View = {}
        links: dict[int, int] = {}
        things: list[tuple[bytes, Thing]] = []

        def visit(path: bytes, thing: Thing) -> None:
            for name, child in thing.names.items():
                if committed and child.kind == "file" and child.committed is None:
                    continue
                full = path + b"/" + name if path else name
                links[id(child)] = links.get(id(child), 0) + 1
                things.append((full, child))
                if child.kind == "dir":
                    visit(full, child)

        visit(b"", self.root)
        for path, thing in things:
            contents = thing.live
            if committed and thing.kind == "file":
                assert thing.committed is not None
                contents = thing.committed
            count = links[id(thing)]
            if thing.kind == "dir":
                count = 2 + sum(child.kind == "dir" for child in thing.names.values())
            xattrs = tuple(sorted(thing.xattrs.items()))
            found[path] = (thing.kind, thing.mode, contents, xattrs, count)
        return found

    def commit(self, *things: Thing) -> None:
        for thing in things:
            if thing.pending:
                thing.committed = thing.live
                thing.pending = False
                thing.commits += 1
        self.staged = False
        self.commits.append(self.view(committed=True))

    def settle(self) -> None:
        if self.staged:
            self.commit()

    # Contents

    def write(self, handle: Open, offset: int, data: bytes) -> None:
        thing = handle.thing
        old = thing.live.ljust(offset, b"\0")
        thing.live = old[:offset] + data + old[offset + len(data) :]
        thing.pending = True
        handle.dirty = True
        handle.owes = thing.commits

    def truncate(self, thing: Thing, size: int) -> None:
        thing.live = thing.live[:size].ljust(size, b"\0")
        thing.pending = True

    def flush(self, handle: Open) -> None:
        if handle.owes in handle.thing.name_changes and handle.owes != handle.thing.commits:
            handle.dirty = False
        if handle.dirty:
            handle.dirty = False
            if handle.thing.links:
                # A commit in any case; but of contents only if it had a part in them.
                own = not handle.thing.pending or handle.owes == handle.thing.commits
                self.commit(*([handle.thing] if own else []))

    def release(self, handle: Open) -> None:
        thing = handle.thing
        if handle.writable:
            thing.writers -= 1
        ends = handle.owes == thing.commits or (handle.writable and not thing.writers)
        if thing.pending and thing.links and ends:
            self.commit(thing)

    def fsync(self, handle: Open) -> None:
        handle.dirty = False
        if handle.thing.pending and handle.thing.links:
            handle.owes = handle.thing.commits
            self.commit(handle.thing)
        else:
            self.settle()

    # Names

    def add(self, parent: Thing, name: bytes, thing: Thing) -> None:
        parent.names[name] = thing

    def remove(self, parent: Thing, name: bytes) -> None:
        thing = parent.names.pop(name)
        thing.links -= 1
        if thing.kind != "file" or thing.committed is not None:
            self.staged = True

    def rename(self, parent: Thing, name: bytes, to: Thing, to_name: bytes) -> None:
        thing = parent.names[name]
        target = to.names.get(to_name)
        if target is thing:
            return
        if target is not None:
            self.remove(to, to_name)
        del parent.names[name]
        to.names[to_name] = thing
        if thing.pending:
            thing.name_changes.add(thing.commits)
            self.commit(thing)
        else:
            self.staged = True

    def exchange(self, parent: Thing, name: bytes, to: Thing, to_name: bytes) -> None:
        one, two = parent.names[name], to.names[to_name]
        parent.names[name], to.names[to_name] = two, one
        if one.pending or two.pending:
            for thing in (one, two):
                if thing.pending:
                    thing.name_changes.add(thing.commits)
            self.commit(one, two)
        else:
            self.staged = True

    def link(self, thing: Thing, to: Thing, name: bytes) -> None:
        to.names[name] = thing
        thing.links += 1
        if thing.pending:
            thing.name_changes.add(thing.commits)
            self.commit(thing)
        else:
            self.staged = True
