"""A run as text for people and as one JSON document for machines.

The document, format ``commitfs-benchmarks/1``::

    format, started (ISO, UTC), revision, quick, machine {...}, rows [
        name, title, seconds, error (null or text), facts {name: number or text},
        sides  [name, unit, n, p50, p90, p99, min, max, rounds (the median of each)],
        ratios [name, value, low, high, unit, goal (null or {limit, at_most}), reached (null or bool)]]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from benchmarks.stats import Goal, Ratio, Side, percentile

FORMAT = "commitfs-benchmarks/1"

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Fact: TypeAlias = int | float | str


@dataclass(frozen=True, slots=True)
class Report:
    """What one row found.  `facts` are counts and sizes beside the times."""

    sides: Sequence[Side] = ()
    ratios: Sequence[Ratio] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row as it was run; `error` is why it could not be, with `report` empty."""

    name: str
    title: str
    seconds: float
    report: Report
    error: str | None = None


def document(
    *, started: str, revision: str, quick: bool, machine: Mapping[str, Fact], rows: Sequence[RowResult]
) -> dict[str, Json]:
    """The JSON document of a run (see above)."""
    return {
        "format": FORMAT,
        "started": started,
        "revision": revision,
        "quick": quick,
        "machine": dict(machine),
        "rows": [_row(row) for row in rows],
    }


def _row(row: RowResult) -> Json:
    return {
        "name": row.name,
        "title": row.title,
        "seconds": _short(row.seconds),
        "error": row.error,
        "facts": dict(row.report.facts),
        "sides": [_side(side) for side in row.report.sides],
        "ratios": [_ratio(ratio) for ratio in row.report.ratios],
    }


def _side(side: Side) -> Json:
    samples = side.samples
    return {
        "name": side.name,
        "unit": side.unit,
        "n": len(samples),
        "p50": _short(percentile(samples, 0.5)),
        "p90": _short(percentile(samples, 0.9)),
        "p99": _short(percentile(samples, 0.99)),
        "min": _short(min(samples)),
        "max": _short(max(samples)),
        "rounds": [_short(percentile(part, 0.5)) for part in side.rounds],
    }


def _ratio(ratio: Ratio) -> Json:
    return {
        "name": ratio.name,
        "value": _short(ratio.value),
        "low": _short(ratio.low),
        "high": _short(ratio.high),
        "unit": ratio.unit,
        "goal": None if ratio.goal is None else {"limit": ratio.goal.limit, "at_most": ratio.goal.at_most},
        "reached": ratio.reached,
    }


def _short(number: float) -> float:
    return float(f"{number:.5g}")


def table(run: dict[str, Json]) -> Iterator[str]:
    """The ratios of a document as the table of docs/performance.md."""
    yield "| row | ratio | value | rounds | goal |"
    yield "|---|---|---|---|---|"
    for row in cast("list[dict[str, Json]]", run["rows"]):
        for ratio in cast("list[dict[str, Json]]", row["ratios"]):
            value, low, high = (_plain(cast(float, ratio[key])) for key in ("value", "low", "high"))
            unit = "" if ratio["unit"] == "x" else f" {ratio['unit']}"
            goal = cast("dict[str, Json] | None", ratio["goal"])
            limit = "" if goal is None else str(Goal(cast(float, goal["limit"]), bool(goal["at_most"])))
            verdict = {None: "", True: ": reached", False: ": **not reached**"}[
                cast("bool | None", ratio["reached"])
            ]
            yield f"| {row['name']} | {ratio['name']} | {value}{unit} | {low} to {high} | {limit}{verdict} |"


def _plain(number: float) -> str:
    """Three significant digits, never in powers of ten."""
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"


def lines(row: RowResult) -> Iterator[str]:
    """A row as the run prints it."""
    yield f"{row.name}: {row.title}"
    if row.error is not None:
        yield f"  not measured: {row.error}"
        return
    width = max((len(side.name) for side in row.report.sides), default=0)
    if row.report.sides:
        heads = "".join(f"{head:>10}" for head in ("n", "p50", "p90", "p99", "max"))
        yield f"  {'':{width}}{heads}"
    for side in row.report.sides:
        samples = side.samples
        cells = "".join(f"{_plain(percentile(samples, at)):>10}" for at in (0.5, 0.9, 0.99, 1.0))
        yield f"  {side.name:{width}}{len(samples):>10}{cells} {side.unit}"
    for ratio in row.report.ratios:
        unit = ratio.unit if ratio.unit == "x" else f" {ratio.unit}"
        spread = "" if ratio.low == ratio.high else f" ({_plain(ratio.low)} to {_plain(ratio.high)})"
        verdict = "reached" if ratio.reached else "NOT REACHED"
        goal = "" if ratio.goal is None else f"   goal {ratio.goal}: {verdict}"
        yield f"  {ratio.name}: {_plain(ratio.value)}{unit}{spread}{goal}"
    for name, fact in row.report.facts.items():
        yield f"  {name}: {fact if isinstance(fact, str) else _plain(fact)}"
