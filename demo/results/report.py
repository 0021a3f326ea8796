"""Report of a run: the tables and the summary for people, the document for scripts."""

from __future__ import annotations

from typing import Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from demo.results.history import History
from demo.results.outcome import Outcome
from demo.results.topic_table import (
    Column,
    acknowledged_line,
    away_line,
    delivered_line,
    lines_of,
    pace_line,
    topic_table,
    yes_or_no,
)

NOTE = (
    "received: messages, each counted once; after the + those that came again, as QoS 1 allows when a broker dies.\n"
    "memory lost: the topic was in memory mode when the server was killed; readers are shown a gap instead."
)


def render(outcome: Outcome) -> Table:
    """The table: a row for each topic."""
    modes = Column(
        heading="mode\nfrom offset",
        cell=lambda topic: (
            "\n".join(f"{mode} {offset:,}" for mode, offset in outcome.modes.get(topic.name, ())) or "not kept"
        ),
        is_left=True,
    )
    memory_lost = Column(
        heading="memory\nlost",
        cell=lambda topic: f"{topic.lost_from_memory:,}" if topic.lost_from_memory else "",
        footer=f"{sum(topic.lost_from_memory for topic in outcome.topics):,}",
    )
    return topic_table(outcome.topics, after_qos=[modes], after_stored=[memory_lost])


def render_history(history: History) -> Table:
    """The table of Spark's figures, each marked if it equals the expected one."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for heading in ("sealed segments, by Spark SQL", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("count", "mean", "p95"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("as stored", no_wrap=True)
    expected = {figures.topic: figures for figures in history.expected}
    for figures in history.found:
        agrees = figures.topic in expected and figures.agrees_with(expected[figures.topic])
        table.add_row(
            figures.topic,
            figures.metric,
            f"{figures.records:,}",
            *(_number(number) for number in (figures.mean, figures.p95)),
            yes_or_no(agrees),
        )
    return table


def summary(outcome: Outcome) -> list[str]:
    """The figures of the run, a line each."""
    records, size_bytes, read_s = outcome.read_back
    outage_s, grew_to, drained_s = outcome.outage
    figures = {
        "published": pace_line(outcome.topics, outcome.publishing_s, outcome.published_bytes),
        "acknowledged": acknowledged_line(outcome.acknowledging, "a kill"),
        "delivered": delivered_line(outcome.delivering),
        "after the kills": (
            f"an acknowledgement by another broker after {outcome.broker_again_s:.2f} s, "
            f"by the new server after {outcome.server_again_s:.2f} s"
        ),
        "away": away_line(outcome.away_s, outcome.catching_up),
        "replayed": f"{outcome.replayed[0]:,} messages from the beginning in {outcome.replayed[1]:.2f} s",
        "bridged": (
            f"the warehouse was out for {outage_s:.1f} s, its queue grew to {grew_to:,} messages and had drained "
            f"{drained_s:.1f} s after it was back"
        ),
        "read back": f"{records:,} records, {size_bytes / 1e6:.1f} MB in {read_s:.2f} s",
        "sealed": (
            f"{outcome.history.sealed_files} Parquet files, {outcome.history.sealed_bytes / 1e3:,.0f} kB, in "
            f"{outcome.history.conversion_s:.2f} s; Spark started in {outcome.history.session_s:.1f} s, "
            f"its query took {outcome.history.query_s:.1f} s"
        ),
    }
    return lines_of(figures)


def verdict(outcome: Outcome) -> Text:
    """The last line."""
    if outcome.broken:
        return Text(f"NOT HELD: {len(outcome.broken)} broken promises", "bold red")
    acknowledged = sum(topic.acknowledged for topic in outcome.topics if topic.qos)
    lost = sum(topic.lost_from_memory for topic in outcome.topics)
    return Text(
        f"HELD: all {acknowledged:,} acknowledged messages reached the warehouse and every subscriber in order, those "
        f"of QoS 2 once; subscribers lack {lost:,} that were in memory when the server was killed; Spark finds the "
        "same in the sealed segments",
        "bold green",
    )


def document(outcome: Outcome) -> dict[str, Any]:
    """The result for scripts: every field of `Outcome`, with ``held`` and ``broken`` first."""
    return {
        "held": not outcome.broken,
        "broken": outcome.broken,
        **attrs.asdict(outcome),
        "modes": {name: [list(entry) for entry in history] for name, history in outcome.modes.items()},
    }


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:,.2f}"
