"""log, show, ls, cat, stats: what they print of a known history."""

import json
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import BIG, ODD, Cli

FIELDS = [
    "id", "time", "time_ns", "parent", "branch", "offset", "bytes", "changes", "changes_complete", "uid",
    "pid", "program",
]  # fmt: skip
ODD_TEXT = ODD.decode("utf-8", "surrogateescape")
NEWEST = 8


def objects(out: bytes) -> list[dict[str, Any]]:
    out.decode("ascii")
    return [json.loads(line) for line in out.splitlines()]


class TestLog:
    def test_json(self, cli: Cli, store: Path) -> None:
        ran = cli("log", store, "--json")
        assert (ran.code, ran.err) == (0, "")
        told = objects(ran.out)
        assert [line["id"] for line in told] == list(range(NEWEST, 0, -1))
        assert all(list(line) == FIELDS for line in told)
        assert [line["parent"] for line in told] == [7, 6, 5, 4, 3, 2, 1, None]
        for line in told:
            moment = datetime.fromisoformat(line["time"])
            assert moment.tzinfo == UTC
            assert int(moment.timestamp()) == line["time_ns"] // 10**9
            assert line["time"].endswith(f"{line['time_ns'] % 10**9:09d}Z")
            assert line["branch"] == "main"
            assert line["changes_complete"] is True
            assert line["bytes"] >= 128
        offsets = [line["offset"] for line in told]
        assert offsets == sorted(offsets, reverse=True)

    def test_changes(self, cli: Cli, store: Path) -> None:
        by_id = {line["id"]: line["changes"] for line in objects(cli("log", store, "--json").out)}
        assert by_id[2] == [{"op": "create", "path": "a.txt", "size": 4}]
        assert by_id[3] == [{"op": "write", "path": "a.txt", "size": 8}]
        assert {"op": "mkdir", "path": "d", "size": None} in by_id[4]
        assert {"op": "create", "path": f"d/{ODD_TEXT}", "size": 3} in by_id[4]
        assert [(change["op"], change["path"]) for change in by_id[5]] == [
            ("unlink", "a.txt"),
            ("symlink", "l"),
        ]
        assert next(change for change in by_id[7] if change["op"] == "rename")["source"] == "d"
        assert by_id[8] == [{"op": "create", "path": "big", "size": len(BIG)}]

    @pytest.mark.parametrize(
        ("count", "ids"), [(0, []), (1, [8]), (3, [8, 7, 6]), (99, list(range(8, 0, -1)))]
    )
    def test_at_most(self, cli: Cli, store: Path, count: int, ids: list[int]) -> None:
        told = objects(cli("log", store, "-n", count, "--json").out)
        assert [line["id"] for line in told] == ids

    PATHS = [
        ("a.txt", [6, 5, 3, 2]),
        ("/a.txt", [6, 5, 3, 2]),
        ("./a.txt/", [6, 5, 3, 2]),
        ("d", [7, 4]),
        ("e", [7]),
        (f"d/{ODD_TEXT}", [7, 4]),
        (f"e/{ODD_TEXT}", [7]),
        ("l", [5]),
        ("big", [8]),
        ("never", []),
        ("never/there", []),
        ("a.txt/below", []),
        ("", list(range(8, 0, -1))),
        ("/", list(range(8, 0, -1))),
    ]

    @pytest.mark.parametrize(("path", "ids"), PATHS)
    def test_case_36_of_a_path(self, cli: Cli, store: Path, path: str, ids: list[int]) -> None:
        ran = cli("log", store, path, "--json")
        assert [line["id"] for line in objects(ran.out)] == ids
        told = (0, "") if ids else (1, f"commitfs: {path} is in no commit\n")
        assert (ran.code, ran.err) == told

    def test_for_people(self, cli: Cli, store: Path) -> None:
        lines = cli("log", store).lines
        assert len(lines) == NEWEST, "one line a commit, whatever is in a name"
        assert re.fullmatch(r"00000003  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  write a\.txt \(8 B\)  .+", lines[5])
        assert "2.5 MiB" in lines[0]
        assert "rename e from d" in lines[1]
        assert "and 1 other " in lines[3]
        assert r"d/b\xff\n\x1b'" in lines[4]


class TestShow:
    @pytest.mark.parametrize("commit", ["4", "00000004", "latest~4", "main~4"])
    def test_json_is_that_of_log(self, cli: Cli, store: Path, commit: str) -> None:
        (shown,) = objects(cli("show", store, commit, "--json").out)
        assert shown in objects(cli("log", store, "--json").out)
        assert shown["id"] == 4

    def test_for_people(self, cli: Cli, store: Path) -> None:
        lines = cli("show", store, "4").lines
        assert lines[0] == "commit   00000004"
        assert lines[2] == "parent   00000003"
        assert "    mkdir d" in lines
        assert r"    create d/b\xff\n\x1b' (3 B)" in lines

    def test_the_first(self, cli: Cli, store: Path) -> None:
        assert "parent   none" in cli("show", store, "1").lines


class TestLs:
    def test_names_as_they_are(self, cli: Cli, store: Path) -> None:
        assert cli("ls", store, "latest").out == b"a.txt\nbig\ne\nl\n"
        assert cli("ls", store, "4").out == b"a.txt\nd\n"
        assert cli("ls", store, "1").out == b""
        assert cli("ls", store, "latest", "e").out == ODD + b"\n"
        assert cli("ls", store, "5", "/l/").out == ODD + b"\n", "through a symlink"

    def test_one_file(self, cli: Cli, store: Path) -> None:
        assert cli("ls", store, "latest", "a.txt").out == b"a.txt\n"
        assert cli("ls", store, "4", b"d/".decode() + ODD_TEXT).out == b"d/" + ODD + b"\n"

    def test_long(self, cli: Cli, store: Path) -> None:
        lines = cli("ls", "-l", store, "5").lines
        assert [line.split()[0] for line in lines] == ["drwxr-x---", "lrwxrwxrwx"]
        assert lines[1].endswith(" l -> d")
        (line,) = cli("ls", "-l", store, "latest", "big").lines
        assert line.split()[:5] == ["-rw-r--r--", "1", "0", "0", str(len(BIG))]


class TestCat:
    def test_versions(self, cli: Cli, store: Path) -> None:
        assert cli("cat", store, "2", "a.txt").out == b"one\n"
        assert cli("cat", store, "3", "a.txt").out == b"two two\n"
        assert cli("cat", store, "latest", "/a.txt").out == b"three"
        assert cli("cat", store, "4", f"d/{ODD_TEXT}").out == b"odd"

    def test_more_than_one_chunk(self, cli: Cli, store: Path) -> None:
        assert cli("cat", store, "latest", "big").out == BIG


class TestStats:
    def test_json(self, cli: Cli, store: Path) -> None:
        (told,) = objects(cli("stats", store, "--json").out)
        assert list(told) == [
            "commits", "oldest", "newest", "published_end", "file_bytes", "live_bytes", "live_data",
            "live_metadata", "files", "directories", "others",
        ]  # fmt: skip
        assert (told["commits"], told["oldest"], told["newest"]) == (8, 1, 8)
        assert told["file_bytes"] == store.stat().st_size
        assert told["live_data"] == len(BIG) + len(b"three") + len(b"odd")
        assert told["live_bytes"] == told["live_data"] + told["live_metadata"]
        assert 128 < told["live_metadata"] < told["published_end"] <= told["file_bytes"]
        assert (told["files"], told["directories"], told["others"]) == (3, 2, 1)

    def test_for_people(self, cli: Cli, store: Path) -> None:
        assert "commits          8" in cli("stats", store).lines


def test_reading_changes_nothing(cli: Cli, store: Path) -> None:
    before = store.read_bytes(), store.stat().st_mtime_ns
    for args in (["log", store], ["log", store, "e"], ["ls", store, "3"], ["stats", store], ["check", store]):
        assert cli(*args).code == 0
    assert (store.read_bytes(), store.stat().st_mtime_ns) == before
    assert os.listdir(store.parent) == ["s.db"]
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
