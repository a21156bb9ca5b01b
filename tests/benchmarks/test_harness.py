"""The harness computes and writes what it says; no time is judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.bench import Bench, parse_saves, run_saves, save_command
from benchmarks.main import ROWS, load, main, run_row
from benchmarks.mounted import Memory, MountError, commitfs
from benchmarks.report import FORMAT, Report, RowResult, document, lines, table
from benchmarks.stats import Goal, Ratio, Side, alternate, percentile, ratio


@pytest.mark.parametrize(("fraction", "expected"), [(0, 1.0), (0.25, 1.75), (0.5, 2.5), (0.9, 3.7), (1, 4.0)])
def test_a_percentile_is_interpolated_between_the_sorted_samples(fraction: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], fraction) == pytest.approx(expected)


def test_no_samples_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_a_side_needs_samples_in_every_round() -> None:
    with pytest.raises(ValueError, match="store: every round"):
        Side("store", "us", ((1.0,), ()))


def test_a_ratio_is_the_middle_of_what_the_rounds_say() -> None:
    store = Side("store", "us", ((2.0, 2.0, 9.0), (8.0,) * 3, (3.0,) * 3, (5.0,) * 3, (90.0,) * 3))
    loop = Side("loop", "us", ((1.0,) * 3, (8.0,) * 3, (2.0,) * 3, (4.0,) * 3, (3.0,) * 3))
    found = ratio(store, loop, goal=Goal(1.3))
    assert (found.name, found.value, found.low, found.high) == ("store / loop, p50", 1.5, 1.25, 2.0)
    assert found.reached is False
    assert ratio(store, loop).reached is None
    with pytest.raises(ValueError, match="same rounds"):
        ratio(store, Side("loop", "us", ((1.0,),)))


def test_a_goal_is_a_limit_from_above_or_from_below() -> None:
    assert [Goal(1.5).reached(value) for value in (1.4, 1.5, 1.6)] == [True, True, False]
    assert [Goal(8, at_most=False).reached(value) for value in (7, 8, 9)] == [False, True, True]
    assert [str(Goal(1.5)), str(Goal(8, at_most=False))] == ["<= 1.5", ">= 8"]


def test_sides_alternate_and_warm_up_is_dropped() -> None:
    ran: list[str] = []

    def side(name: str) -> list[float]:
        ran.append(name)
        return [float(len(ran))]

    sides = alternate({"a": lambda: side("a"), "b": lambda: side("b")}, rounds=2, unit="us", warmup=1)
    assert "".join(ran) == "abbaab"
    assert sides["a"].rounds == ((4.0,), (5.0,))
    assert sides["b"].rounds == ((3.0,), (6.0,))


def test_the_document_holds_the_run_and_survives_json() -> None:
    store = Side("store", "us", ((1.0, 3.0), (2.0,)))
    report = Report(
        [store], [Ratio("r", 1.25, 1.0, 1.5, Goal(1.3)), Ratio("n", 7, 7, 7, unit="us")], {"reads": 3}
    )
    rows = [
        RowResult("commit", "a title", 0.5, report),
        RowResult("mount", "another", 0.1, Report(), "MountError: no mount"),
    ]
    start = "2026-01-01T00:00:00+00:00"
    made = document(started=start, revision="abc", quick=True, machine={"cores": 2}, rows=rows)
    assert json.loads(json.dumps(made)) == {
        "format": FORMAT,
        "started": "2026-01-01T00:00:00+00:00",
        "revision": "abc",
        "quick": True,
        "machine": {"cores": 2},
        "rows": [
            {
                "name": "commit",
                "title": "a title",
                "seconds": 0.5,
                "error": None,
                "facts": {"reads": 3},
                "sides": [
                    {
                        "name": "store",
                        "unit": "us",
                        "n": 3,
                        "p50": 2.0,
                        "p90": 2.8,
                        "p99": 2.98,
                        "min": 1.0,
                        "max": 3.0,
                        "rounds": [2.0, 2.0],
                    }
                ],
                "ratios": [
                    {
                        "name": "r",
                        "value": 1.25,
                        "low": 1.0,
                        "high": 1.5,
                        "unit": "x",
                        "goal": {"limit": 1.3, "at_most": True},
                        "reached": True,
                    },
                    {
                        "name": "n",
                        "value": 7,
                        "low": 7,
                        "high": 7,
                        "unit": "us",
                        "goal": None,
                        "reached": None,
                    },
                ],
            },
            {
                "name": "mount",
                "title": "another",
                "seconds": 0.1,
                "error": "MountError: no mount",
                "facts": {},
                "sides": [],
                "ratios": [],
            },
        ],
    }
    assert list(table(made))[2:] == [
        "| commit | r | 1.25 | 1 to 1.5 | <= 1.3: reached |",
        "| commit | n | 7 us | 7 to 7 |  |",
    ]
    assert list(lines(rows[0]))[3:] == [
        "  r: 1.25x (1 to 1.5)   goal <= 1.3: reached",
        "  n: 7 us",
        "  reads: 3",
    ]
    assert list(lines(rows[1])) == ["mount: another", "  not measured: MountError: no mount"]


def test_every_row_has_a_title_and_can_be_measured() -> None:
    for name in ROWS:
        row = load(name)
        assert row.TITLE
        assert callable(row.measure)


def test_a_row_that_cannot_run_says_why_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        TITLE = "a row"

        def measure(self, bench: Bench) -> Report:
            raise OSError("the disk is full")

    monkeypatch.setattr("benchmarks.main.load", lambda name: Broken())
    result = run_row("open", Bench(tmp_path))
    assert (result.title, result.error) == ("a row", "OSError: the disk is full")
    out = tmp_path / "run.json"
    assert main(["--quick", "--dir", str(tmp_path), "--json", str(out), "open", "commit"]) == 1
    made = json.loads(out.read_text())
    assert [row["name"] for row in made["rows"]] == ["open", "commit"]
    assert made["machine"]["cores"] >= 1
    assert list(tmp_path.iterdir()) == [out], "what a row made is removed"


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["comit"])
    assert ended.value.code == 2
    assert "no row 'comit'" in capsys.readouterr().err


def test_places_never_meet(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.place("store.db") != bench.place("store.db")
    assert bench.new_folder("x").is_dir()
    assert (bench.pick(100, 5), Bench(tmp_path, quick=True).pick(100, 5)) == (100, 5)


def test_the_folder_below_is_one_that_was_tried(tmp_path: Path) -> None:
    folder = Bench(tmp_path).folder_below("below", tries=3)
    assert folder in tmp_path.iterdir()
    assert len(list(tmp_path.iterdir())) == 3
    assert len(list(folder.iterdir())) == 10


def test_the_filesystem_is_the_one_that_holds_the_folder() -> None:
    assert machine.filesystem_of(Path("/proc")).startswith("proc on ")


@pytest.mark.parametrize("mode", ["fdatasync", "dsync"])
def test_the_bare_loop_writes_what_it_says(tmp_path: Path, mode: str) -> None:
    took = Bench(tmp_path).bare(mode, tmp_path / "log", 5)
    assert len(took) == 5
    assert all(us > 0 for us in took)
    data = (tmp_path / "log").read_bytes()
    assert data == b"".join(bytes([i]) * 2176 for i in range(1, 6))


@pytest.mark.parametrize("how", ["create", "trunc", "inplace"])
def test_the_client_saves_the_same_files_on_every_side(tmp_path: Path, how: str) -> None:
    bench = Bench(tmp_path)
    left, right = bench.new_folder("left"), bench.new_folder("right")
    if how != "create":
        run_saves(bench, [("close", left), ("close", right)], n=10, b=4096)
    sides = run_saves(bench, [("close", left), ("fsync", right)], n=10, r=3, o=how)
    for folder, saves in zip((left, right), sides, strict=True):
        size = 4096 if how == "inplace" else 2048
        assert {path.name: path.stat().st_size for path in folder.iterdir()} == {
            f"f{i:08}": size for i in range(10)
        }
        assert len(saves.total) == 10
        for total, *parts in zip(saves.total, saves.opened, saves.written, saves.ended, strict=True):
            assert total == pytest.approx(sum(parts))
        assert saves.wall >= sum(saves.total) * 0.999


def test_the_clients_threads_share_the_saves(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    folder = bench.new_folder("one")
    (saves,) = run_saves(bench, [("close", folder)], n=30, t=4, f=100)
    assert sorted(path.name for path in folder.iterdir()) == [f"f{i:08}" for i in range(100, 130)]
    assert len(saves.total) == 30
    contents = {path.read_bytes() for path in folder.iterdir()}
    assert len(contents) == 30, "no two saves are equal"


def test_the_client_stops_when_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    folder = bench.new_folder("one")
    stop = bench.place("stop")
    command = save_command(bench, [("close", folder)], n=1_000_000, p=1000, s=str(stop))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        while not list(folder.iterdir()):
            assert client.poll() is None
        stop.touch()
        out, _ = client.communicate()
    (saves,) = parse_saves(out, 1)
    assert 0 < len(saves.total) < 1_000_000
    assert len(list(folder.iterdir())) == len(saves.total)


def test_parsing_the_client_keeps_sides_apart() -> None:
    left, right = parse_saves("wall 0 9000\n0 6000 1000 2000 3000\nwall 1 5000\n1 4000 500 500 3000\n", 2)
    assert (left.total, left.opened, left.written, left.ended, left.wall) == ([6.0], [1.0], [2.0], [3.0], 9.0)
    assert (right.total, right.wall) == ([4.0], 5.0)


def test_memory_sees_a_process_grow() -> None:
    grow = "import sys; input(); data = b'x' * (64 << 20); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", grow], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with Memory(process.pid, every=0.001) as memory:
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        while memory.last < memory.first + 60:
            assert process.poll() is None
    process.communicate(b"\n")
    assert memory.peak >= memory.first + 60


def test_a_mount_that_fails_says_what_the_daemon_said(tmp_path: Path) -> None:
    folder = tmp_path / "mnt"
    folder.mkdir()
    mounted = commitfs(tmp_path, folder)
    with pytest.raises(MountError, match="no mount: commitfs: "), mounted:
        pytest.fail("a directory was mounted as a store")


@pytest.mark.mounted
def test_the_floor_takes_saves_and_writes_each_behind_the_last(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.floor() as floor:
        (saves,) = run_saves(bench, [("close", floor.folder)], n=3)
    assert len(saves.total) == 3
    log = next(tmp_path.glob("*-log")).read_bytes()
    for i in range(3):
        record, data = log[i * 2176 : i * 2176 + 128], log[i * 2176 + 128 : (i + 1) * 2176]
        assert record == bytes(128)
        assert data.count(0) < 128
    assert not any(log[3 * 2176 :])


def test_a_table_of_what_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not json")
    (tmp_path / "other").write_text('{"rows": 3}')
    for name, said in (("missing", "No such file"), ("text", "no document"), ("other", "no document")):
        with pytest.raises(SystemExit, match=f"{name}.*{said}"):
            main(["--table", str(tmp_path / name)])
