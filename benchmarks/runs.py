"""The arithmetic of a benchmark: rows, samples, ratios, goals, and the order of the runs.

Pure except for the calls of the given measurements. The measurements are in `limits`, `peers` and `ours`, the output in
`table`.
"""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from benchmarks.load import Timing


class UnavailableError(Exception):
    """A row cannot be measured here; the message is shown instead of a figure."""


class NoRoomError(UnavailableError):
    """A size is too large for this machine.

    Attributes:
        most: The largest size for which there is room.
    """

    def __init__(self, message: str, most: float) -> None:
        super().__init__(message)
        self.most = most


@attrs.frozen(slots=True)
class Goal:
    """The goal of a row.

    Attributes:
        bound: The figure, or the factor if ``of`` is given.
        of: Key of the row that the bound is a factor of; empty for an absolute bound.
        at_most: The figure must not be above the bound; otherwise it must not be below it.
    """

    bound: float
    of: str = ""
    at_most: bool = False

    def met_by(self, figure: float) -> bool:
        """Whether a figure (or a ratio) satisfies the bound."""
        return figure <= self.bound if self.at_most else figure >= self.bound

    def describe(self, unit: str) -> str:
        """The goal as a short text."""
        sign = "<=" if self.at_most else ">="
        return f"{sign} {self.bound:g} x {self.of}" if self.of else f"{sign} {format_figure(self.bound)} {unit}"


@attrs.frozen(slots=True)
class Row:
    """One line of the table.

    Attributes:
        key: Dotted name, matched by ``--rows``.
        title: Description.
        unit: Unit of the figures.
        promise: What must have happened before an acknowledgement (or other information needed to read the figure).
        peer: Key of the row to compare with; empty for none.
        limit: Key of the row that bounds this one; empty for none.
        limit_scale: Converts this row's figure to the limit's unit (for example stored megabytes per record).
        goal: The goal; None for rows that are only compared with.
        more_goals: Goals that must be met as well.
    """

    key: str
    title: str
    unit: str
    promise: str = ""
    peer: str = ""
    limit: str = ""
    limit_scale: float = 1.0
    goal: Goal | None = None
    more_goals: tuple[Goal, ...] = ()

    @property
    def goals(self) -> tuple[Goal, ...]:
        """All goals, which must all be met."""
        return (() if self.goal is None else (self.goal,)) + self.more_goals

    @property
    def goals_text(self) -> str:
        """All goals as a short text; empty if there is none."""
        return ", ".join(goal.describe(self.unit) for goal in self.goals)

    @property
    def others(self) -> tuple[str, ...]:
        """Keys of all rows that it is compared with."""
        return tuple(key for key in (self.peer, self.limit, *(goal.of for goal in self.goals)) if key)


@attrs.frozen(slots=True)
class Measurement:
    """A measurement that can be repeated, and fills one row or several.

    Attributes:
        keys: Rows it fills.
        run: One run; returns a figure per key. Raises `UnavailableError` if it is not possible on this machine.
        repeated: False for a long measurement that is made once, in the first round.
    """

    keys: tuple[str, ...]
    run: Callable[[Timing], Mapping[str, float]]
    repeated: bool = True


@attrs.define(slots=True)
class Samples:
    """Figures of one row in the order of the rounds, and the reason if some are missing."""

    figures: list[float] = attrs.field(factory=list)
    problem: str = ""


@attrs.frozen(slots=True)
class Line:
    """A row with its results, ready to be shown.

    Attributes:
        figure: Median of the runs; None if there is none.
        lowest: Smallest run.
        highest: Largest run.
        runs: Number of runs.
        peer_ratio: This row over its peer; None if either is missing.
        limit_ratio: This row (scaled) over its limit; None if either is missing.
        goal: The goals as text, or empty.
        reached: Whether all goals are met; None without a goal, or without the figures to judge one of them while the
            others are met.
        problem: Why the row has no figure, or empty.
    """

    row: Row
    figure: float | None
    lowest: float | None
    highest: float | None
    runs: int
    peer_ratio: float | None
    limit_ratio: float | None
    goal: str
    reached: bool | None
    problem: str


def select(rows: Sequence[Row], pattern: str) -> list[Row]:
    """Rows whose key matches a shell pattern (or one of several, separated by commas), and those they refer to."""
    by_key = {row.key: row for row in rows}
    wanted: set[str] = set()
    patterns = pattern.split(",")
    waiting = [row.key for row in rows if any(fnmatch.fnmatchcase(row.key, each) for each in patterns)]
    while waiting:
        key = waiting.pop()
        if key in wanted:
            continue
        wanted.add(key)
        waiting += by_key[key].others
    return [row for row in rows if row.key in wanted]


def schedule(measurements: Iterable[Measurement], wanted: set[str], rounds: int) -> list[tuple[int, Measurement]]:
    """Order of the runs: every measurement once per round (A B C A B C), so that slow changes affect all equally."""
    needed = [measurement for measurement in measurements if wanted & set(measurement.keys)]
    return [
        (number, measurement)
        for number in range(rounds)
        for measurement in needed
        if measurement.repeated or number == 0
    ]


def collect(
    plan: Sequence[tuple[int, Measurement]],
    timing: Timing,
    *,
    now_s: Callable[[], float],
    deadline_s: float,
    progress: Callable[[int, Measurement], None],
    expected_errors: tuple[type[Exception], ...],
) -> dict[str, Samples]:
    """Make the runs of a plan and collect their figures per row.

    A measurement that fails is not repeated; its rows show why. The first round is always complete; a later run is made
    only if it is likely to end before the deadline (judged by how long the same one took before), so the whole stays
    within its time.

    Args:
        plan: From `schedule`.
        timing: Passed to each run.
        now_s: A clock that never goes backwards.
        deadline_s: Time on that clock after which no further round continues.
        progress: Called before each run with its number in the plan.
        expected_errors: Errors of a server or a generator that end one measurement but not the benchmark.
    """
    samples: dict[str, Samples] = {}
    longest_s: dict[tuple[str, ...], float] = {}
    for number, (round_number, measurement) in enumerate(plan):
        mine = [samples.setdefault(key, Samples()) for key in measurement.keys]
        if any(sample.problem for sample in mine):
            continue
        begun_at = now_s()
        if round_number > 0 and begun_at + longest_s[measurement.keys] > deadline_s:
            break
        progress(number, measurement)
        try:
            figures = measurement.run(timing)
        except UnavailableError as error:
            for sample in mine:
                sample.problem = str(error)
            continue
        except expected_errors as error:
            for sample in mine:
                sample.problem = f"failed: {type(error).__name__}: {error}"
            continue
        longest_s[measurement.keys] = max(longest_s.get(measurement.keys, 0.0), now_s() - begun_at)
        for key, figure in figures.items():
            samples.setdefault(key, Samples()).figures.append(figure)
    return samples


def ratio(own: Sequence[float], other: Sequence[float], scale: float = 1.0) -> float | None:
    """Median over the rounds of own/other.

    Figures of the same round are compared with each other, because they had the same disturbances. None if there is no
    round with both, or the other figure is 0.
    """
    pairs = [(mine * scale, theirs) for mine, theirs in zip(own, other, strict=False) if theirs]
    return statistics.median(mine / theirs for mine, theirs in pairs) if pairs else None


def evaluate(rows: Sequence[Row], samples: Mapping[str, Samples]) -> list[Line]:
    """Turn samples into lines: medians, spans, ratios, and whether goals are met."""

    def figures_of(key: str) -> list[float]:
        return samples[key].figures if key in samples else []

    lines = []
    for row in rows:
        figures = figures_of(row.key)
        problem = samples[row.key].problem if row.key in samples else "not measured"
        lines.append(
            Line(
                row=row,
                figure=statistics.median(figures) if figures else None,
                lowest=min(figures, default=None),
                highest=max(figures, default=None),
                runs=len(figures),
                peer_ratio=ratio(figures, figures_of(row.peer)) if row.peer else None,
                limit_ratio=ratio(figures, figures_of(row.limit), row.limit_scale) if row.limit else None,
                goal=row.goals_text,
                reached=_reached(row, figures_of),
                problem=problem,
            )
        )
    return lines


def _reached(row: Row, figures_of: Callable[[str], list[float]]) -> bool | None:
    """Whether a row meets all of its goals; None if that is not known."""
    met = [_met(goal, figures_of(row.key), figures_of(goal.of)) for goal in row.goals]
    if False in met:
        return False
    return None if None in met or not met else True


def _met(goal: Goal, own: Sequence[float], other: Sequence[float]) -> bool | None:
    if not own:
        return None
    judged = ratio(own, other) if goal.of else statistics.median(own)
    return None if judged is None else goal.met_by(judged)


def format_figure(value: float) -> str:
    """A figure with about three significant digits; k and M mean thousands and millions."""
    if abs(value) >= 999_500:
        return f"{value / 1e6:.2f} M"
    if abs(value) >= 10_000:
        return f"{value / 1e3:.0f} k"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"
