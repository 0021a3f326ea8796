"""The metrics of cache queues, in the conventions of Prometheus. Pure.

All of it is in the store, so one exporter tells of all queues, whichever processes write and drive them. There is a
handful of series a queue, and a queue only where an operator configured one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from broker_adapter.cache_queue.cli.view import QueueView, outcomes

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

STATES: Final = ("closed", "half open", "open", "paused", "starting", "not driven", "draining", "idle")
"""What a queue may be doing; one of them is 1 at a time. A state that is not listed is shown as well."""

_UNWRITTEN: Final = ("rejected", "dropped_newest")


class QueueCollector:
    """Metrics of queues as they were seen just now."""

    def __init__(self, views: Sequence[QueueView]) -> None:
        self._views = views

    def collect(self) -> Iterable[Metric]:
        """All metrics."""
        views = self._views
        yield _gauge("depth_records", "Records that wait.", ((view, view.state.depth.record_count) for view in views))
        yield _gauge(
            "depth_bytes", "Bytes that wait, as stored.", ((view, view.state.depth.size_bytes) for view in views)
        )
        yield _gauge(
            "max_bytes",
            "Bytes that may wait, 0 for no bound.",
            ((view, int(view.state.definition.settings.get("max_bytes", 0))) for view in views),
        )
        yield _gauge(
            "oldest_age_seconds",
            "How long the oldest record has waited.",
            ((view, view.oldest_age_s) for view in views),
        )
        yield _counter(
            "records_in", "Records that were put in.", ((view, view.state.depth.next_offset) for view in views)
        )
        yield _gauge("dead_letters", "Refused records that are kept.", ((v, v.state.dead_letter_count) for v in views))
        yield _gauge("driven", "1 while somebody drives the queue.", ((view, int(bool(view.holder))) for view in views))
        left = CounterMetricFamily(
            "journal_queue_records_out",
            "Records that left the queue, by what became of them.",
            labels=["queue", "outcome"],
        )
        refused = CounterMetricFamily(
            "journal_queue_refused_records", "Records that found the queue full.", labels=["queue", "outcome"]
        )
        state = GaugeMetricFamily(
            "journal_queue_state", "What is done with the queue: 1 for that state.", labels=["queue", "state"]
        )
        for view in views:
            name = view.state.name
            for outcome, count in outcomes(view.state).items():
                (refused if outcome in _UNWRITTEN else left).add_metric([name, outcome], count)
            for each in dict.fromkeys((*STATES, view.doing)):
                state.add_metric([name, each], int(each == view.doing))
        yield left
        yield refused
        yield state


def page(views: Sequence[QueueView]) -> bytes:
    """The metrics page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(QueueCollector(views))
    return generate_latest(registry)


def _gauge(name: str, what: str, values: Iterable[tuple[QueueView, int]]) -> Metric:
    family = GaugeMetricFamily(f"journal_queue_{name}", what, labels=["queue"])
    for view, value in values:
        family.add_metric([view.state.name], value)
    return family


def _counter(name: str, what: str, values: Iterable[tuple[QueueView, int]]) -> Metric:
    family = CounterMetricFamily(f"journal_queue_{name}", what, labels=["queue"])
    for view, value in values:
        family.add_metric([view.state.name], value)
    return family
