"""Random calls on the disk below and on the mount: the same outcomes, the same trees, the same history."""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.acts import EXCHANGE, NOREPLACE, outcome, renameat2
from tests.support.mounted import Mount
from tests.support.trees import Entry, differences, tree

pytestmark = pytest.mark.mounted

Call = Callable[[Path], object]
NAMES = ["a", "b", "c", "dd", "e" * 200]


def write(path: Path, flags: int, at: int, data: bytes) -> None:
    fd = os.open(path, flags | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, data, at) if data else None
    finally:
        os.close(fd)


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def pick_path(choice: random.Random) -> str:
    return "/".join(choice.choice(NAMES) for _ in range(choice.choice([1, 1, 2, 2, 3])))


def pick_call(choice: random.Random) -> tuple[str, Call]:
    """A call as text, for the message of a failure, and as a function of the root."""
    one, two = pick_path(choice), pick_path(choice)
    data = choice.randbytes(choice.choice([0, 1, 10, 1000, 5000, 70_000, 1_200_000]))
    at = choice.choice([0, 0, 1, 4096, 65_536, 1_000_000])
    size = choice.choice([0, 1, 4096, 65_535, 80_000])
    mode = choice.choice([0o644, 0o600, 0o755, 0o4711])
    calls: list[tuple[str, Call]] = [
        (f"write {one}", lambda r: write(r / one, os.O_WRONLY | os.O_TRUNC, 0, data)),
        (f"write {one}", lambda r: write(r / one, os.O_WRONLY | os.O_TRUNC, 0, data)),
        (f"overwrite {one} {at}", lambda r: write(r / one, os.O_RDWR, at, data)),
        (f"create {one}", lambda r: write(r / one, os.O_WRONLY | os.O_EXCL, at, data)),
        (f"append {one}", lambda r: append(r / one, data)),
        (f"truncate {one} {size}", lambda r: os.truncate(r / one, size)),
        (f"mkdir {one}", lambda r: os.mkdir(r / one)),
        (f"mkdir {one}", lambda r: os.mkdir(r / one)),
        (f"rmdir {one}", lambda r: os.rmdir(r / one)),
        (f"unlink {one}", lambda r: os.unlink(r / one)),
        (f"rename {one} {two}", lambda r: os.rename(r / one, r / two)),
        (f"rename {one} {two}", lambda r: os.rename(r / one, r / two)),
        (f"noreplace {one} {two}", lambda r: renameat2(r / one, r / two, NOREPLACE)),
        (f"exchange {one} {two}", lambda r: renameat2(r / one, r / two, EXCHANGE)),
        (f"link {one} {two}", lambda r: os.link(r / one, r / two, follow_symlinks=False)),
        (f"symlink {two}", lambda r: os.symlink(one, r / two)),
        (f"chmod {one} {mode:o}", lambda r: os.chmod(r / one, mode)),
        (f"setxattr {one}", lambda r: os.setxattr(r / one, "user.x", data[:1000])),
        (f"removexattr {one}", lambda r: os.removexattr(r / one, "user.x")),
        (f"mkfifo {one}", lambda r: os.mknod(r / one, 0o10644)),
    ]
    return choice.choice(calls)


def untimed(root: Path) -> dict[str, Entry]:
    """Times differ between two runs of the same calls, and so does what a FIFO would block on."""
    return {path: entry._replace(mtime_ns=0) for path, entry in tree(root).items()}


@pytest.mark.parametrize("seed", range(4))
def test_random_calls(fs: Mount, plain: Path, seed: int) -> None:
    choice = random.Random(seed)
    done: list[str] = []
    history: dict[int, dict[str, Entry]] = {}
    for number in range(600):
        text, call = pick_call(choice)
        # Opening a FIFO would wait for its other end.
        target = plain / text.split()[1]
        if text.split()[0] in ("write", "overwrite", "append", "create") and target.is_fifo():
            continue
        on_disk, mounted = outcome(lambda: call(plain)), outcome(lambda: call(fs.path))  # noqa: B023
        done.append(f"{text}: {on_disk}")
        assert mounted == on_disk, "\n".join(done[-30:])
        if number % 40 == 39:
            wanted = untimed(plain)
            history[fs.latest()] = wanted
            assert differences(untimed(fs.path), wanted) == [], "\n".join(done[-60:])
    fs.latest()  # settles
    fs.kill9()
    fs.start()
    assert differences(untimed(fs.path), untimed(plain)) == []
    for commit_id, wanted in history.items():
        assert differences(untimed(fs.commit(commit_id)), wanted) == [], commit_id
    fs.check()


def test_random_calls_of_several_at_once(fs: Mount, plain: Path) -> None:
    """Each thread has a folder of its own, so that its outcomes are as on disk; history is shared."""
    failures: list[str] = []

    def act(number: int) -> None:
        choice = random.Random(100 + number)
        here, there = plain / f"t{number}", fs / f"t{number}"
        here.mkdir()
        there.mkdir()
        for _ in range(250):
            text, call = pick_call(choice)
            if not (here / text.split()[1]).is_fifo():
                on_disk, mounted = outcome(lambda: call(here)), outcome(lambda: call(there))  # noqa: B023
                if mounted != on_disk:
                    failures.append(f"{number}: {text}: {mounted}, on disk {on_disk}")

    actors = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()
    assert failures == []
    wanted = untimed(plain)
    for view, root in fs.views():
        assert differences(untimed(root), wanted) == [], view
    fs.check()
