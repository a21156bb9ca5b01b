"""``benchmarks/run``: choose rows, run them, print them, and keep the run as one JSON document."""

import argparse
import datetime as dt
import importlib
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.report import Report, RowResult, document, lines, table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
ROWS = ("commit", "mount", "open", "copy", "group", "heads", "beside", "growth", "stream", "history")


class RowModule(Protocol):
    """What a module under rows/ has."""

    TITLE: str

    def measure(self, bench: Bench) -> Report: ...


def load(name: str) -> RowModule:
    """The row's module; loaded only when asked for, so that one that lacks something stops no other."""
    return cast(RowModule, importlib.import_module(f"benchmarks.rows.{name}"))


def run_row(name: str, bench: Bench, trace: bool = False) -> RowResult:
    """Run a row.  Whatever it raises is its result: the rows behind it still count."""
    start = time.monotonic()
    title, error, report = name, None, Report()
    try:
        module = load(name)
        title = module.TITLE
        report = module.measure(bench)
    except Exception as problem:
        if trace:
            traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}"
    return RowResult(name, title, time.monotonic() - start, report, error)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run", description="Measure commitfs side by side with what it stands on."
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"which rows (default: all): {' '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="small counts: only shows what is badly off")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each comparison")
    parser.add_argument(
        "--dir", type=Path, default=Path("/var/tmp"), help="a folder on the disk to measure (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the document goes (results/)")
    parser.add_argument("--trace", action="store_true", help="show the traceback of a row that fails")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="print a run's document as a table and end"
    )
    parser.add_argument("--list", action="store_true", help="list the rows and end")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}: there are {', '.join(ROWS)}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    if chosen.list:
        for name in ROWS:
            print(f"{name:8} {load(name).TITLE}")
        return 0
    if chosen.table:
        try:
            rows = list(table(json.loads(chosen.table.read_text())))
        except OSError as error:
            sys.exit(f"benchmarks/run: {chosen.table}: {error.strerror}")
        except (ValueError, KeyError, TypeError):
            sys.exit(f"benchmarks/run: {chosen.table} is no document of a run")
        print(*rows, sep="\n")
        return 0
    started = dt.datetime.now(dt.UTC).replace(microsecond=0)
    facts = machine.facts(chosen.dir)
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    results: list[RowResult] = []
    top = Path(tempfile.mkdtemp(prefix="commitfs-bench-", dir=chosen.dir))
    try:
        for name in chosen.rows or ROWS:
            folder = top / name
            folder.mkdir()
            machine.spread_folders(folder)
            results.append(run_row(name, Bench(folder, chosen.quick, chosen.rounds), chosen.trace))
            print("", *lines(results[-1]), sep="\n", flush=True)
    finally:
        # Only now, for the same reason that folders are spread.
        shutil.rmtree(top, ignore_errors=True)
    path: Path = chosen.json or RESULTS / f"{started:%Y%m%dT%H%M%SZ}.json"
    whole = document(
        started=started.isoformat(),
        revision=machine.revision(ROOT),
        quick=chosen.quick,
        machine=facts,
        rows=results,
    )
    path.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 1 if any(result.error for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
