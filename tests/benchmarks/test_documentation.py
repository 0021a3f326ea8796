"""docs/benchmarks.md names every row, and has the goals that the program judges by."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks import __main__ as program
from benchmarks import loop_steps
from benchmarks.rows import rows
from benchmarks.runs import Row
from benchmarks.sizes import MANY_SHARDS

TEXT = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()


def full_rows() -> list[Row]:
    return [
        *rows(
            shards=program.FULL_SHARDS,
            many=MANY_SHARDS,
            history=program.FULL_RECORDS,
            connections=program.FULL_CONNECTIONS,
            queued=program.FULL_QUEUED,
            waiting=program.FULL_WAITING,
        ),
        *loop_steps.rows(program.FULL_SHARDS),
    ]


def goals_table() -> str:
    """The table of goals in Markdown; neighbours with the same goals share a line."""
    lines: list[tuple[list[str], str]] = []
    for row in full_rows():
        goals = ", ".join(_marked(goal.describe(row.unit), goal.of) for goal in row.goals)
        if not goals:
            continue
        if lines and lines[-1][1] == goals and lines[-1][0][-1].split(".")[0] == row.key.split(".")[0]:
            lines[-1][0].append(row.key)
        else:
            lines.append(([row.key], goals))
    body = [f"| {', '.join(f'`{key}`' for key in keys)} | {goals} |" for keys, goals in lines]
    return "\n".join(["| row | goal |", "| --- | --- |", *body])


def _marked(goal: str, other: str) -> str:
    return goal.replace(other, f"`{other}`") if other else goal


def test_the_goals_of_the_page_are_those_of_the_program() -> None:
    assert goals_table() in TEXT


def test_every_row_is_described() -> None:
    named = set(described(TEXT[: TEXT.index("\n## Figures")]))
    assert not [row.key for row in full_rows() if not any(fnmatch.fnmatchcase(row.key, name) for name in named)]


def described(text: str) -> Iterator[str]:
    """Names and patterns in first cells of tables; after `a.b-p50` or `a.b.one`, `-p99` or `.many` is another end."""
    for line in text.splitlines():
        if not line.startswith("| `"):
            continue
        first, *more = re.findall(r"`([^`]+)`", line.split("|")[1])
        yield first
        for name in more:
            yield first[: first.rindex(name[0])] + name if name[0] in "-." else name
