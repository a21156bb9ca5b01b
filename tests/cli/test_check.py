"""check: exit codes and findings."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from commitfs.format.record import pack
from commitfs.native import crc32c
from commitfs.store.store import Store
from tests.cli.conftest import Cli


def test_sound(cli: Cli, store: Path) -> None:
    assert cli("check", store) == (0, b"sound: 8 commits read\n", "")
    ran = cli("check", store, "--json")
    (summary,) = [json.loads(line)["summary"] for line in ran.lines]
    assert (ran.code, ran.err) == (0, "")
    assert summary == {
        "damage": False,
        "commits": 8,
        "oldest": 1,
        "newest": 8,
        "sound": [{"first": 1, "last": 8}],
        "damaged": [],
    }


def test_damage(cli: Cli, damaged: Path) -> None:
    ran = cli("check", damaged)
    assert (ran.code, ran.err) == (1, "")
    assert ran.lines[0].startswith("damage, commit 00000008, offset ")
    assert ", big: " in ran.lines[0]
    assert ran.lines[1:] == [
        "damage was found; 8 commits read",
        "commit 8: big damaged",
        "commits 1 to 7 are sound",
        f"to copy all that can be read into a new store: commitfs salvage {damaged} NEW",
    ]


def test_damage_as_json(cli: Cli, damaged: Path) -> None:
    ran = cli("check", damaged, "--json")
    assert (ran.code, ran.err) == (1, "")
    found, last = [json.loads(line) for line in ran.lines]
    assert list(found) == ["severity", "commit", "offset", "path", "message"]
    assert last["summary"]["damaged"] == [{"first": 8, "last": 8, "lost": False, "paths": ["big"]}]
    assert last["summary"]["sound"] == [{"first": 1, "last": 7}]
    assert (found["severity"], found["commit"], found["path"]) == ("damage", 8, "big")
    assert 8192 < found["offset"] < damaged.stat().st_size


def test_a_lost_slot_is_a_warning(cli: Cli, tmp_path: Path, store: Path) -> None:
    data = bytearray(store.read_bytes())
    data[100] ^= 1
    (tmp_path / "s.db").write_bytes(data)
    ran = cli("check", tmp_path / "s.db", "--json")
    found, last = [json.loads(line) for line in ran.lines]
    assert not last["summary"]["damage"]
    assert (ran.code, found["severity"], found["commit"], found["path"]) == (0, "warning", None, None)


def test_reading_damage_gives_one_line(cli: Cli, damaged: Path) -> None:
    ran = cli("cat", damaged, "latest", "big")
    assert ran.code == 1
    assert ran.err.startswith("commitfs: ")
    assert ran.err.count("\n") == 1
    assert cli("cat", damaged, "latest", "a.txt").out == b"three", "it hides nothing of the rest"


def test_damage_that_later_commits_share_is_told_of_each(cli: Cli, tmp_path: Path, store: Path) -> None:
    """d/ODD was written by commit 4, is there as e/ODD from 7 on, and only its bytes are damaged."""
    offset = json.loads(cli("log", store, "--json").lines[4])["offset"]
    data = bytearray(store.read_bytes())
    data[data.index(b"odd", offset)] ^= 1
    (tmp_path / "s.db").write_bytes(data)
    ran = cli("check", tmp_path / "s.db")
    assert ran.code == 1
    assert ran.lines[-4:-1] == [
        "commits 4 to 6: d/b\\xff\\n\\x1b' damaged",
        "commits 7 to 8: e/b\\xff\\n\\x1b' damaged",
        "commits 1 to 3 are sound",
    ]


@pytest.fixture
def cut(cli: Cli, tmp_path: Path, store: Path) -> Path:
    """The file ends within the newest commit, which a slot names."""
    newest = json.loads(cli("log", store, "-n", "1", "--json").out)
    path = tmp_path / "cut.db"
    path.write_bytes(store.read_bytes()[: newest["offset"] + 1000])
    return path


def test_a_store_cut_short_is_salvaged_as_its_error_says(cli: Cli, tmp_path: Path, cut: Path) -> None:
    ran = cli("log", cut)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    told = re.search(r"`commitfs (salvage) (\S+) NEW`", ran.err)
    assert told is not None
    ran = cli(told[1], told[2], tmp_path / "new.db")
    assert (ran.code, ran.err) == (1, "")
    assert ran.lines[-1] == f"{tmp_path / 'new.db'}: 7 commits copied whole, 1 lost"
    assert cli("cat", tmp_path / "new.db", "3", "a.txt").out == b"two two\n"
    assert cli("check", tmp_path / "new.db") == (0, b"sound: 7 commits read\n", "")


def test_a_store_that_does_not_open_is_checked_all_the_same(cli: Cli, cut: Path) -> None:
    ran = cli("check", cut)
    assert (ran.code, ran.err) == (1, "")
    assert "is truncated" in ran.lines[0]
    assert ran.lines[-3:] == [
        "commit 8: lost",
        "commits 1 to 7 are sound",
        f"to copy all that can be read into a new store: commitfs salvage {cut} NEW",
    ]


def test_check_is_not_advised_to_those_who_check(cli: Cli, tmp_path: Path, store: Path) -> None:
    """What opening a damaged store says ends with that advice elsewhere."""
    (newest,) = map(json.loads, cli("log", store, "-n", "1", "--json").lines)
    data = bytearray(store.read_bytes())
    data[newest["offset"] + 20] ^= 1
    (tmp_path / "s.db").write_bytes(data)
    assert cli("stats", tmp_path / "s.db").err.endswith(" is damaged: run commitfs check\n")
    ran = cli("check", tmp_path / "s.db")
    assert ran.code == 1
    assert ran.err.endswith(" is damaged\n")


def test_log_goes_on_behind_a_damaged_record(cli: Cli, tmp_path: Path, store: Path) -> None:
    offsets = {line["id"]: line["offset"] for line in map(json.loads, cli("log", store, "--json").lines)}
    data = bytearray(store.read_bytes())
    data[offsets[5] + 20] ^= 1
    (tmp_path / "s.db").write_bytes(data)
    ran = cli("log", tmp_path / "s.db", "--json")
    told = [json.loads(line)["id"] for line in ran.lines]
    assert told == [8, 7, 6, 4, 3, 2, 1]
    assert ran.err.startswith("commitfs: the record of commit 5 at ")
    assert ran.err.count("\n") == 1
    ran = cli("log", tmp_path / "s.db", "a.txt", "--json")
    assert [json.loads(line)["id"] for line in ran.lines] == [6, 3, 2]
    assert ran.code == 0


@pytest.mark.parametrize("root", [1 << 62, (1 << 63) - 1])
def test_a_root_outside_the_log(cli: Cli, tmp_path: Path, store: Path, root: int) -> None:
    """A record whose checksum fits says nonsense: of that commit, and of no other."""
    data = bytearray(store.read_bytes())
    with closing(Store.open(store)) as opened:
        record = opened.record(4)
    data[record.offset : record.bytes_offset] = pack(record._replace(root_offset=root), crc32c)[0]
    path = tmp_path / "s.db"
    path.write_bytes(data)
    ran = cli("check", path)
    assert (ran.code, ran.err) == (1, "")
    assert "commit 4: lost" in ran.lines
    assert "commits 1 to 3 and 6 to 8 are sound" in ran.lines
    summary = json.loads(cli("check", path, "--json").lines[-1])["summary"]
    assert [run["first"] for run in summary["damaged"]] == [4, 5]
