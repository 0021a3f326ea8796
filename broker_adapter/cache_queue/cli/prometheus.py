"""The metrics of cache queues, in the conventions of Prometheus. Pure.

All data is in the store, so one exporter covers all queues, whichever processes write and drive them. There are a few
series per queue, and only queues that an operator configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from broker_adapter.cache_queue.cli.view import QueueView, outcomes, put_in
from journal.telemetry.exposition import Family, Labels, counters, gauges, page_of

STATES: Final = ("ok", "retrying", "down", "paused", "starting", "not driven", "draining", "idle")
"""States of a queue; exactly one of them has the value 1. A state that is not in this list is shown as well."""

_UNWRITTEN: Final = ("rejected", "dropped_newest")


def queue_metrics(views: Sequence[QueueView]) -> Iterator[Family]:
    """The metrics of queues, from their views."""

    def of_each(value: Callable[[QueueView], float]) -> dict[Labels, float]:
        return {(view.state.name,): value(view) for view in views}

    queue = ("queue",)
    yield gauges(
        "journal_queue_depth_records",
        "Records that wait.",
        queue,
        of_each(lambda view: view.state.depth.record_count),
    )
    yield gauges(
        "journal_queue_depth_bytes",
        "Bytes that wait, as stored.",
        queue,
        of_each(lambda view: view.state.depth.size_bytes),
    )
    yield gauges(
        "journal_queue_max_bytes",
        "Most bytes that may wait, 0 for no bound.",
        queue,
        of_each(lambda view: int(view.state.definition.settings.get("max_bytes", 0))),
    )
    yield gauges(
        "journal_queue_oldest_age_seconds",
        "How long the oldest record has waited.",
        queue,
        of_each(lambda view: view.oldest_age_s),
    )
    yield counters(
        "journal_queue_records_in_total",
        "Records that were put in.",
        queue,
        of_each(lambda view: put_in(view.state)),
    )
    yield gauges(
        "journal_queue_dead_letters",
        "Refused records that are kept.",
        queue,
        of_each(lambda view: view.state.dead_letter_count),
    )
    yield gauges(
        "journal_queue_driven", "1 while a process drives the queue.", queue, of_each(lambda view: bool(view.holder))
    )
    yield from _outcomes(views)
    yield gauges(
        "journal_queue_state",
        "State of the queue: 1 for the present one.",
        ("queue", "state"),
        {
            (view.state.name, state): state == view.activity
            for view in views
            for state in dict.fromkeys((*STATES, view.activity))
        },
    )


def _outcomes(views: Sequence[QueueView]) -> Iterator[Family]:
    counts = {
        (view.state.name, outcome): float(count) for view in views for outcome, count in outcomes(view.state).items()
    }
    label = ("queue", "outcome")
    yield counters(
        "journal_queue_records_out_total",
        "Records that left the queue, by outcome.",
        label,
        {labels: count for labels, count in counts.items() if labels[1] not in _UNWRITTEN},
    )
    yield counters(
        "journal_queue_refused_records_total",
        "Records that were refused or dropped because the queue was full.",
        label,
        {labels: count for labels, count in counts.items() if labels[1] in _UNWRITTEN},
    )


def page(views: Sequence[QueueView]) -> bytes:
    """The metrics page."""
    return page_of(queue_metrics(views))
