"""What is said of samples: percentiles, and ratios of medians with their spread.

Times on a shared machine drift by the second, so no single median means much.  Every comparison
is taken in many short rounds with its sides side by side.  Each round gives a ratio of medians; the
ratio of a run is the median of those, and its spread holds the middle half of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The `fraction` quantile (0..1), interpolated linearly; `percentile(s, 0.5)` is the median."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Side:
    """All samples of one side of a comparison, by round.  `unit` is of the samples."""

    name: str
    unit: str
    rounds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.rounds or not all(self.rounds):
            raise ValueError(f"{self.name}: every round needs a sample")

    @property
    def samples(self) -> list[float]:
        return [sample for part in self.rounds for sample in part]

    def at(self, fraction: float) -> float:
        return percentile(self.samples, fraction)


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit of a ratio (or of a plain number): at most it, or at least it."""

    limit: float
    at_most: bool = True

    def reached(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """`value`, the lower and upper quartile of the rounds' own values, and the goal set for it, if any."""

    name: str
    value: float
    low: float
    high: float
    goal: Goal | None = None
    unit: str = "x"

    @property
    def reached(self) -> bool | None:
        return None if self.goal is None else self.goal.reached(self.value)


def middle(each: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile of the rounds' values."""
    return percentile(each, 0.5), percentile(each, 0.25), percentile(each, 0.75)


def ratio(of: Side, against: Side, fraction: float = 0.5, goal: Goal | None = None, name: str = "") -> Ratio:
    """`of` over `against` at a percentile.  Both have the same number of rounds."""
    if len(of.rounds) != len(against.rounds):
        raise ValueError(f"{of.name} and {against.name} were not measured in the same rounds")
    each = [
        percentile(a, fraction) / percentile(b, fraction)
        for a, b in zip(of.rounds, against.rounds, strict=True)
    ]
    at = f"p{fraction * 100:g}"
    return Ratio(name or f"{of.name} / {against.name}, {at}", *middle(each), goal)


def alternate(
    sides: Mapping[str, Callable[[], Sequence[float]]], rounds: int, unit: str, warmup: int = 1
) -> dict[str, Side]:
    """Run every side once a round, in the order given and backwards in turn.

    A side returns the samples of one round.  `warmup` rounds come first and are not kept.
    """
    kept: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    for turn in range(warmup + rounds):
        names = list(sides)
        for name in names if turn % 2 == 0 else reversed(names):
            samples = tuple(sides[name]())
            if turn >= warmup:
                kept[name].append(samples)
    return {name: Side(name, unit, tuple(parts)) for name, parts in kept.items()}
