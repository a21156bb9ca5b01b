"""salvage: what it prints, its exit codes, and that neither file is touched that must not be."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from commitfs.format.facts import Facts, encode_facts
from commitfs.format.keys import ROOT_INO, dentry_key
from commitfs.native import crc32c
from commitfs.store.store import Store
from commitfs.vfs.tree import find_dentry
from tests.cli.conftest import BIG, Cli


def test_nothing_lost(cli: Cli, store: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    assert cli("salvage", store, new) == (0, f"{new}: 8 commits copied whole\n".encode(), "")
    for commit in range(2, 9):
        assert cli("ls", new, commit, "-l") == cli("ls", store, commit, "-l")
    assert cli("cat", new, "latest", "big").out == BIG
    assert cli("show", new, 4, "--json").lines == cli("show", new, 4, "--json").lines


def test_something_lost(cli: Cli, damaged: Path, tmp_path: Path) -> None:
    before = damaged.read_bytes()
    new = tmp_path / "new.db"
    ran = cli("salvage", damaged, new)
    assert (ran.code, ran.err) == (1, "")
    assert ran.lines[0].startswith("lost, commit 00000008, big: data at offset ")
    assert ran.lines[1:] == [f"{new}: 7 commits copied whole, 1 in part"]
    assert damaged.read_bytes() == before
    assert cli("check", new).code == 0
    assert cli("cat", new, "latest", "big").code == 1
    assert cli("show", new, 8, "--json").out.count(b'"op": "lost", "path": "big"') == 1


def test_as_json(cli: Cli, damaged: Path, tmp_path: Path) -> None:
    loss, last = [json.loads(line) for line in cli("salvage", damaged, tmp_path / "n", "--json").lines]
    assert list(loss) == ["commit", "path", "message"]
    assert (loss["commit"], loss["path"]) == (8, "big")
    assert last == {"summary": {"whole": 7, "in_part": 1, "lost": 0, "oldest": 1, "newest": 8, "sound": True}}


def test_a_lost_commit_says_so(cli: Cli, store: Path, tmp_path: Path) -> None:
    offsets = {line["id"]: line["offset"] for line in map(json.loads, cli("log", store, "--json").lines)}
    data = bytearray(store.read_bytes())
    data[offsets[5] + 20] ^= 1
    (tmp_path / "s.db").write_bytes(data)
    new = tmp_path / "new.db"
    assert cli("salvage", tmp_path / "s.db", new).code == 1
    ran = cli("ls", new, 5)
    assert (ran.code, ran.err) == (
        1,
        "commitfs: commit 00000005 is lost: there was nothing of it to salvage\n",
    )
    assert [json.loads(line)["id"] for line in cli("log", new, "a.txt", "--json").lines] == [6, 3, 2]
    assert json.loads(cli("show", new, 6, "--json").out)["parent"] == 4


@pytest.mark.parametrize("name", ["mine", "no/such/folder/new", ""])
def test_new_has_to_be_new(cli: Cli, store: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    ran = cli("salvage", store, tmp_path / name if name else "")
    assert (ran.code, ran.out) == (2, b"")
    assert ran.err.startswith("commitfs: ")
    assert ran.err.count("\n") == 1
    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


@pytest.mark.parametrize("data", [b"", b"text" * 10_000])
def test_what_is_no_store(cli: Cli, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "s.db").write_bytes(data)
    ran = cli("salvage", tmp_path / "s.db", tmp_path / "new.db")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, b"", 1)
    assert not (tmp_path / "new.db").exists()


def test_what_fits_its_checksums_and_is_not_sound_is_told(cli: Cli, store: Path, tmp_path: Path) -> None:
    """A name is gone and its inode is not, as no damage leaves it, but a fault of a writer might."""
    path, new = tmp_path / "s.db", tmp_path / "new.db"
    path.write_bytes(store.read_bytes())
    with closing(Store.open(path, writable=True)) as forged:
        tree = forged.tree(forged.head)
        cookie, _ = find_dentry(tree, ROOT_INO, b"a.txt") or (0, None)
        txn = forged.begin(1 << 16)
        txn.add(encode_facts(Facts(1, 0, 1, b"forger", ()), crc32c))
        assert tree.delete(dentry_key(ROOT_INO, cookie))
        txn.finish(root=tree.build(txn.add, txn.next_offset), time_ns=1)
        forged.flush()
    assert cli("check", path).code == 1
    ran = cli("salvage", path, new)
    assert ran.code == 1
    assert ran.lines[-1].endswith("; it is not sound")
    assert any(line.startswith("damage, commit 00000009, a.txt: ") for line in ran.lines)
    new.unlink()
    assert json.loads(cli("salvage", path, new, "--json").lines[-1])["summary"]["sound"] is False
