"""Report of a run with several servers: the table and the summary for people, the document for scripts."""

from __future__ import annotations

from typing import Any

import attrs
from rich.table import Table
from rich.text import Text

from demo.cluster.outcome import CUT, CUT_GOAL_S, KILL_GOAL_S, KILL_MEDIAN_GOAL_S, KILLED, ClusterOutcome, median
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
    "received: messages, each counted once; after the + those that came again, as QoS 1 allows.\n"
    "server-1, server-2, server-3: records that each of them has, read while it was the owner, one after the other.\n"
    "retained: each broker gave a new subscriber the last message of the topic, and no other one."
)


def render(outcome: ClusterOutcome) -> Table:
    """The table: a row for each topic."""
    servers = [
        Column(
            heading=f"{name}\nhas",
            cell=lambda topic, records=records: f"{records.get(topic.name, 0):,}",  # type: ignore[misc]
            footer=f"{sum(records.values()):,}",
        )
        for name, records in sorted(outcome.records.items())
    ]
    retained = {each.topic: each for each in outcome.retained}

    def retained_at(topic: str) -> str | Text:
        return "" if retained[topic].number < 0 and not retained[topic].wrong else yes_or_no(not retained[topic].wrong)

    column = Column(heading="retained\nis last", cell=lambda topic: retained_at(topic.name), is_left=True)
    return topic_table(outcome.topics, after_stored=servers, after_received=[column])


def summary(outcome: ClusterOutcome) -> list[str]:
    """The figures of the run, a line each."""
    seen = outcome.observed
    kills = [each for each in seen.takeovers if each.cause == KILLED]
    cut_off = "; ".join(
        f"no acknowledgement for {each.pause_s:.2f} s ({each.former_owner} to {each.owner}; goal {CUT_GOAL_S:g} s)"
        for each in seen.takeovers
        if each.cause == CUT
    )
    killed = ", ".join(f"{each.pause_s:.2f} s ({each.former_owner} to {each.owner})" for each in kills)
    median_s = median([each.pause_s for each in kills])
    missed = ", missed" if median_s > KILL_MEDIAN_GOAL_S else ""
    figures = {
        "published": pace_line(outcome.topics, seen.publishing_s, outcome.published_bytes),
        "acknowledged": acknowledged_line(outcome.acknowledging, "a takeover"),
        "delivered": delivered_line(outcome.delivering),
        "owner killed": (
            f"no acknowledgement for {killed}; p50 {median_s:.2f} s (goal {KILL_MEDIAN_GOAL_S:g} s{missed}), "
            f"longest {max((each.pause_s for each in kills), default=0.0):.2f} s (goal {KILL_GOAL_S:g} s)"
        ),
        "owner cut off": (
            f"{cut_off}: {outcome.cut_by}; back after {seen.cut_s:.1f} s, it followed within {seen.mended_s:.2f} s"
        ),
        "empty disk": (
            f"{seen.emptied}, started without its data directory, had all {seen.rejoin_entries:,} entries of the log "
            f"after {seen.rejoin_s:.2f} s"
        ),
        "away": away_line(seen.away_s, seen.catching_up),
        "replayed": f"{seen.replayed[0]:,} messages from the beginning in {seen.replayed[1]:.2f} s",
        "the run": f"took {seen.run_s:.0f} s",
    }
    return lines_of(figures)


def verdict(outcome: ClusterOutcome) -> Text:
    """The last line."""
    if outcome.broken:
        return Text(f"NOT HELD: {len(outcome.broken)} broken promises", "bold red")
    acknowledged = sum(topic.acknowledged for topic in outcome.topics)
    return Text(
        f"HELD: all {acknowledged:,} acknowledged messages are on each of {len(outcome.records)} servers and reached "
        "every subscriber in order, those of QoS 2 once; each retained message is the last one; "
        f"{len(outcome.observed.takeovers)} takeovers{' within their goals' if outcome.is_timed else ''}",
        "bold green",
    )


def document(outcome: ClusterOutcome) -> dict[str, Any]:
    """The result for scripts: every field of `ClusterOutcome`, with ``held`` and ``broken`` first."""
    return {"held": not outcome.broken, "broken": outcome.broken, **attrs.asdict(outcome)}
