"""A judge of what is read from a damaged store (P7).

It demands, after any damage: nothing is served that differs from what was committed; what is missing is
said to be; what the damage does not touch can be read; `check` finds it and names the commits and paths
concerned, and no others; a salvage brings over all that can be read, and nothing else.
"""

import stat
from pathlib import Path
from typing import NamedTuple

from commitfs.errors import CommitfsError, CorruptError, FormatError, NotFoundError, ReadOnlyError
from commitfs.format.keys import ROOT_INO
from commitfs.format.node import NO_ROOT
from commitfs.format.record import Record
from commitfs.store.check import check_store
from commitfs.store.salvage import commits_in, open_damaged
from commitfs.store.store import Store
from commitfs.vfs.check import check_trees
from commitfs.vfs.damage import Damaged, damaged_commits
from commitfs.vfs.salvage import Loss, salvage
from commitfs.vfs.snapshot import Snapshot
from commitfs.vfs.vfs import Vfs
from tests.support.damage import Original, Ranges, View, below, view_of
from tests.support.memory_file import MemoryDisk
from tests.support.stores import opener
from tests.support.world import CTX, open_vfs

# -- the judge -----------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What was wrong, in words; nothing where all is as P7 has it."""

    wrong_bytes: list[str]
    unreadable: list[str]
    """Commits the damage did not touch that could not be read."""
    unfound: list[str]
    """What `check` did not find or did not name."""
    found: bool


def compare(commit: int, expected: View, view: View, unreadable: set[bytes], verdict: Verdict) -> None:
    for path, entry in view.items():
        if expected.get(path) != entry:
            verdict.wrong_bytes.append(f"commit {commit}: {path!r} is not what it was")
    for path in expected.keys() - view.keys():
        parents = {path.rpartition(b"/")[0] if b"/" in path else b""}
        if not below(path, unreadable - {b""}) and not parents & unreadable and b"" not in unreadable:
            verdict.wrong_bytes.append(f"commit {commit}: {path!r} is missing without a word")


def judge(made: Original, image: bytes, changed: Ranges, *, sample: int = 1, turn: int = 0) -> Verdict:
    """Find every commit, read all paths of those the damage touches and of one in `sample` of the others
    (which ones goes by `turn`), and check the store."""
    verdict = Verdict([], [], [], False)
    touched = made.touched(changed)
    disk = MemoryDisk(image)
    refused = ""
    try:
        store = Store.open("memory", opener=opener(disk))
    except CommitfsError as error:
        refused = str(error)
        try:
            store = open_damaged("memory", opener=opener(disk))
        except FormatError:
            sound = sorted(made.records.keys() - touched)
            return verdict._replace(
                found=True, unreadable=[f"nothing is found, not even {sound}"] * bool(sound)
            )
    findings = [*check_store(store), *check_trees(store)]
    concerned = list(damaged_commits(store, findings))
    verdict = verdict._replace(found=bool(findings or refused))
    for commit, expected in made.views.items():
        named = _named(concerned, commit)
        try:
            record = store.record(commit)
            if commit not in touched and (commit + turn) % sample:
                if record != made.records[commit]:
                    verdict.wrong_bytes.append(f"the record of commit {commit} is another")
                continue
            view, unreadable = view_of(store, record)
        except (CorruptError, NotFoundError) as error:
            if commit not in touched:
                verdict.unreadable.append(f"commit {commit}: {error}")
            newest = int(store.head.id) if store.head is not None else 0
            if named == set() and commit <= newest:
                verdict.unfound.append(f"commit {commit} is gone, and check names {named}")
            continue
        compare(commit, expected, view, unreadable, verdict)
        if unreadable and commit not in touched:
            verdict.unreadable.append(f"commit {commit}: {unreadable}")
        if named is not None and not all(below(path, named) for path in unreadable):
            verdict.unfound.append(f"commit {commit}: {unreadable} cannot be read, and check names {named}")
        if named != set() and commit not in touched and (named is None or not unreadable):
            verdict.unfound.append(f"commit {commit} is sound, and check names {named}")
    if not findings and touched and not refused and image != made.image:
        verdict.unfound.append(f"bytes of commits {sorted(touched)[:5]} were changed")
    store.close()
    return verdict


def _named(concerned: list[Damaged], commit: int) -> set[bytes] | None:
    """Paths that check names in a commit; None: all of it."""
    for run in concerned:
        if run.first <= commit <= run.last:
            return None if run.lost else set(run.paths)
    return set()


async def mounted(made: Original, image: bytes, path: Path, verdict: Verdict) -> str:
    """Serve the store for writing, or for reading where that is refused, and compare the live tree; why
    it was refused, if it was."""
    disk = MemoryDisk(image)
    try:
        async with open_vfs(path, opener=opener(disk), clean=False) as vfs:
            await _compare_live(made, vfs, verdict)
            assert vfs.store.head is not None
            return "torn" if vfs.store.head.id < made.newest else ""
    except ReadOnlyError:
        store = Store.open(path, writable=True, opener=opener(disk))
        await _compare_live(made, Vfs(store, None, None), verdict)
        assert store.latched is not None
        assert disk.cache == image, "a damaged store was written to"
        return str(store.latched)
    except CommitfsError as error:
        return str(error)


async def _compare_live(made: Original, vfs: Vfs, verdict: Verdict) -> None:
    newest = vfs.store.head
    expected = None if newest is None else made.views.get(int(newest.id))
    if newest is None or expected is None:
        verdict.wrong_bytes.append(f"{newest} is served, which never was")
        return
    view, unreadable = await _live_view(vfs)
    compare(int(newest.id), expected, view, unreadable, verdict)


async def _live_view(vfs: Vfs) -> tuple[View, set[bytes]]:
    view: View = {}
    unreadable: set[bytes] = set()

    async def visit(base: bytes, directory: int) -> None:
        try:
            fh, cookie = await vfs.opendir(directory, CTX), 0
            while batch := await vfs.readdir(fh, cookie):
                for name, _, cookie in batch:  # noqa: B007
                    if name not in (b".", b".."):
                        await entry(base + b"/" + name if base else name, directory, name)
            await vfs.releasedir(fh)
        except CorruptError:
            unreadable.add(base)

    async def entry(path: bytes, directory: int, name: bytes) -> None:
        try:
            attr = await vfs.lookup(directory, name, CTX)
            data = b""
            if stat.S_ISREG(attr.mode):
                fh = (await vfs.open(attr.ino, 0, CTX)).fh
                try:
                    data = await vfs.read(fh, 0, attr.size)
                finally:
                    await vfs.release(fh)
            elif stat.S_ISLNK(attr.mode):
                data = await vfs.readlink(attr.ino)
            xattrs = [(x, await vfs.getxattr(attr.ino, x, CTX)) for x in await vfs.listxattr(attr.ino, CTX)]
        except CorruptError:
            unreadable.add(path)
            return
        view[path] = (
            attr.mode, attr.nlink, attr.uid, attr.gid, attr.size, attr.mtime_ns, data, tuple(sorted(xattrs))
        )  # fmt: skip
        if stat.S_ISDIR(attr.mode):
            await visit(path, attr.ino)

    await visit(b"", ROOT_INO)
    return view, unreadable


def salvaged(made: Original, image: bytes, folder: Path, verdict: Verdict) -> None:
    """Copy what is left into a new store, and compare that with what it came from."""
    try:
        source = open_damaged("memory", opener=opener(MemoryDisk(image)))
    except FormatError:
        return  # `judge` has looked whether that may be
    path = folder / "salvaged"
    path.unlink(missing_ok=True)
    losses: list[Loss] = []
    try:
        done = salvage(source, str(path), lost=losses.append)
    except CorruptError as error:
        if any(_readable_root(source, record) for record in commits_in(source)):
            verdict.unreadable.append(f"nothing is salvaged: {error}")
        return
    new = Store.open(path)
    verdict.unfound.extend(f"after a salvage: {found}" for found in [*check_store(new), *check_trees(new)])
    lost: set[int] = set()
    """Inodes that are said to be missing, or to miss something, until then."""
    gone = {loss.commit for loss in losses if not loss.path}
    for record in commits_in(source):
        commit = int(record.id)
        inos = made.inos[commit]
        for loss in losses:
            if loss.commit == commit and loss.path in inos:
                lost.add(inos[loss.path])
        expected = _without_counts(made.views[commit])
        there, _ = view_of(source, record)
        try:
            copied = new.record(commit)
            if copied.root == NO_ROOT:
                raise NotFoundError("lost")
            view, _ = view_of(new, copied)
        except NotFoundError:
            if commit not in gone or there:
                verdict.unreadable.append(f"commit {commit} is not salvaged")
            continue
        if copied.time_ns != record.time_ns:
            verdict.wrong_bytes.append(f"commit {commit} has another time after a salvage")
        brought = _without_counts(view)
        for name, entry in brought.items():
            if not _same_but_lost_xattrs(expected.get(name), entry, inos[name] in lost):
                verdict.wrong_bytes.append(f"commit {commit}: {name!r} was salvaged and is not what it was")
        for name in there.keys() - brought.keys():
            verdict.unreadable.append(f"commit {commit}: {name!r} can be read and was not salvaged")
        for name in expected.keys() - brought.keys():
            parts = name.split(b"/")
            above = {inos[b"/".join(parts[: count + 1])] for count in range(len(parts))}
            if not above & lost:
                verdict.unfound.append(f"commit {commit}: {name!r} is not salvaged, and nobody was told")
    assert done.newest == int(new.head.id) if new.head is not None else 0
    new.close()
    source.close()


def _readable_root(store: Store, record: Record) -> bool:
    try:
        Snapshot(store, record).inode(ROOT_INO)
    except CommitfsError:
        return False
    return True


def _without_counts(view: View) -> View:
    """Links, and sizes of directories, count what is there, which is less where something was lost."""
    counted = {}
    for path, (mode, _links, uid, gid, size, *rest) in view.items():
        directory = isinstance(mode, int) and stat.S_ISDIR(mode)
        counted[path] = (mode, uid, gid, 0 if directory else size, *rest)
    return counted


def _same_but_lost_xattrs(expected: tuple[object, ...] | None, entry: tuple[object, ...], lost: bool) -> bool:
    if expected is None or expected[:-1] != entry[:-1]:
        return False
    had, has = expected[-1], entry[-1]
    assert isinstance(had, tuple)
    assert isinstance(has, tuple)
    return had == has or (lost and set(has) <= set(had))
