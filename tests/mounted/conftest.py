"""Mounts for the tests beside this file, all ended with the test whatever happens."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.mounted import NO_TIMER, Mount

Mounts = Callable[..., Mount]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    """Call it with options of ``-o`` for a mount; each call makes a store of its own, unless given one."""
    made: list[Mount] = []

    def make(*options: str, store: Path | None = None) -> Mount:
        made.append(Mount(tmp_path / f"mount{len(made)}", *options, store=store))
        return made[-1]

    yield make
    for mount in reversed(made):
        mount.close()
    trouble = [text for text in (mount.trouble() for mount in made) if text]
    if trouble:
        pytest.fail("a daemon complained:\n" + "\n".join(trouble), pytrace=False)


@pytest.fixture
def fs(mounts: Mounts) -> Mount:
    """A new store, mounted so that nothing commits by time alone."""
    return mounts(NO_TIMER)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder on the disk below, to learn from what is right."""
    folder = tmp_path / "plain"
    folder.mkdir()
    return folder
