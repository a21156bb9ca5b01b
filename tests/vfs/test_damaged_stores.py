"""P7: a store damaged in many ways, everything read from what is left.  A sample of what
`python -m tests.torture.damage` does."""

from pathlib import Path

import pytest

from commitfs.errors import FsError
from commitfs.store.store import Store
from commitfs.vfs.mirror import Step
from tests.support.damage import Original, original
from tests.support.damage_judge import Verdict, judge, salvaged
from tests.torture.damage import TO_THE_END, Damage, Patch, Tally, all_damage, patched


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage")


@pytest.fixture(scope="module")
def made(folder: Path) -> Original:
    return original(folder, 1)


@pytest.fixture(scope="module")
def other(folder: Path) -> Original:
    return original(folder, 2)


def test_p7_no_damage_is_served_or_hides_the_rest(folder: Path, made: Original, other: Original) -> None:
    tally = Tally(made, folder, salvage_every=8, sample=4)
    for damage in all_damage(made, other, step=1201, seed=3):
        assert tally.one(damage) == "", damage.kind
    assert tally.tried > 100
    assert all(counts["found by check"] for kind, counts in tally.counts.items() if "old" not in kind)


def test_the_judge_sees_what_it_is_to_see(made: Original, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the comparison of checksums left out wrong bytes are served, and it says so."""

    def unchecked(self: Store, offset: int, length: int, crc: int, what: str = "data") -> bytes:
        return self.read(offset, length)

    monkeypatch.setattr(Store, "read_checked", unchecked)
    start, _ = next(place for place in made.used[made.newest] if place[1] - place[0] > 90_000)
    at = start + 20_000
    damage = patched(made, "a byte", Patch(at, bytes([made.image[at] ^ 1])))
    assert judge(made, damage.image, damage.changed).wrong_bytes


@pytest.mark.parametrize("broken", ["_count", "_settle_names"])
def test_the_judge_sees_a_salvage_that_leaves_no_sound_tree(
    made: Original, folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(Step, broken, lambda self: None)
    leaf = made.image.index(b"CN", made.records[41].root_offset)
    places = [next(start for start, end in made.used[made.newest] if end - start > 90_000) + 20_000, leaf + 9]
    changes = [Patch(at, bytes([made.image[at] ^ 1])) for at in places]
    damage = patched(made, "bytes", *changes)
    verdict = Verdict([], [], [], True)
    try:
        salvaged(made, damage.image, folder, verdict)
    except FsError:
        return  # a name that leads nowhere
    assert any("after a salvage" in told for told in verdict.unfound)


def test_nothing_is_left_of_a_file_of_zeros(made: Original) -> None:
    damage = Damage("zeros", bytes(len(made.image)), [(0, TO_THE_END)])
    verdict = judge(made, damage.image, damage.changed)
    assert verdict.found
    assert not verdict.wrong_bytes
