"""Output of the results: a table, and a JSON document for scripts. No measuring and no arithmetic here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.runs import Line, format_figure

REACHED = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}


def render(lines: Sequence[Line], *, title: str, caption: str) -> Table:
    """The table."""
    table = Table(title=title, caption=caption, caption_justify="left", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("row", no_wrap=True)
    table.add_column("what", min_width=24)
    table.add_column("ack after", no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("min-max", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("x peer", justify="right", no_wrap=True)
    table.add_column("x limit", justify="right", no_wrap=True)
    table.add_column("goal", min_width=22)
    table.add_column("reached", no_wrap=True, min_width=7)
    section = ""
    for line in lines:
        if section and line.row.key.split(".")[0] != section:
            table.add_section()
        section = line.row.key.split(".")[0]
        if line.figure is None or line.lowest is None or line.highest is None:
            shown = [f"[yellow]{_escaped(_short(line.problem))}[/]", "", ""]
        else:
            span = f"{format_figure(line.lowest)}-{format_figure(line.highest)}" if line.runs > 1 else "one run"
            shown = [format_figure(line.figure), span, line.row.unit]
        table.add_row(
            line.row.key,
            line.row.title,
            line.row.promise,
            *shown,
            _ratio(line.peer_ratio),
            _ratio(line.limit_ratio),
            line.goal,
            REACHED[line.reached],
        )
    return table


def document(lines: Sequence[Line], *, machine: Mapping[str, Any], form: str) -> dict[str, Any]:
    """The JSON document: ``{"form", "machine", "rows": [...]}``, each row with the fields of `Row` and `Line`."""
    return {
        "form": form,
        "machine": dict(machine),
        "rows": [
            {
                "key": line.row.key,
                "title": line.row.title,
                "promise": line.row.promise,
                "unit": line.row.unit,
                "median": line.figure,
                "min": line.lowest,
                "max": line.highest,
                "runs": line.runs,
                "peer": line.row.peer or None,
                "peer_ratio": line.peer_ratio,
                "limit": line.row.limit or None,
                "limit_ratio": line.limit_ratio,
                "goals": [attrs.asdict(goal) for goal in line.row.goals],
                "reached": line.reached,
                "problem": line.problem or None,
            }
            for line in lines
        ],
    }


def problems(lines: Sequence[Line]) -> list[str]:
    """Why rows have no figures (or fewer), once per reason, with the rows concerned."""
    rows_by_problem: dict[str, list[str]] = {}
    for line in lines:
        if line.problem:
            rows_by_problem.setdefault(line.problem, []).append(line.row.key)
    return [f"{', '.join(keys)}: {problem}" for problem, keys in rows_by_problem.items()]


def _short(problem: str) -> str:
    """The problem, shortened for the place of a figure; the full text is printed below the table."""
    return problem.partition(":")[0]


def _ratio(value: float | None) -> str:
    return "" if value is None else format_figure(value)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
