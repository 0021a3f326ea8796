"""Subscriptions that are being opened: keeps what tails bring while the store is asked for the start position.

A tail that runs already may hand out a record behind the start of a subscription before the store's answer has come.
Without a copy the subscription would miss that record. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from broker_adapter.mqtt.delivery.dedup_watermark import DedupWatermark
from broker_adapter.mqtt.delivery.record_group import Arrivals, Match, Run
from broker_adapter.mqtt.delivery.subscribers import Subscriber
from broker_adapter.mqtt.model.position import ReachedLsn
from shards.topics.filter_index import FilterIndex
from shards.topics.topic_filters import matches

_NOTHING: Final = ReachedLsn(-1)
"""Before every record."""


class EarlyRuns:
    """Records that tails brought for one subscription that is being opened, each once although tails may overlap.

    Attributes:
        runs: In the order in which they came; empty after an overflow.
        has_overflowed: There were more records than may be kept; call `restart`, and ask the store again.
    """

    __slots__ = ("_count", "_max_count", "_watermark", "has_overflowed", "runs")

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self.restart()

    def restart(self) -> None:
        """Forget the records, and keep those that come from now on."""
        self.runs: list[Run] = []
        self.has_overflowed = False
        self._count = 0
        self._watermark = DedupWatermark(_NOTHING)

    def add(self, run: Run) -> None:
        """Keep the records of a run that no tail brought before; too many records make it overflow."""
        if self.has_overflowed:
            return
        start = self._watermark.first_new(run.shard, run.records)
        if start == len(run.records):
            return
        if start:
            run = Run(run.shard, run.topic, run.records[start:], origin=run.origin, is_kept=run.is_kept)
        self._count += len(run.records)
        if self._count > self._max_count:
            self.has_overflowed = True
            self.runs.clear()
            return
        self._watermark.advance(run.shard, (run.records[-1].lsn, run.records[-1].offset))
        self.runs.append(run)

    def arrivals_for(
        self, subscriber: Subscriber, all_of_session: Collection[Subscriber]
    ) -> Iterator[tuple[Run, Arrivals]]:
        """The arrivals of a subscription, without messages that another subscription of the session has delivered.

        Each record is yielded separately: a session's watermark is by shard, and a shard may have several topics.
        """
        match = Match(subscriber.inbox, (subscriber.options,))
        for run in self.runs:
            known = [
                one.options for one in all_of_session if one is not subscriber and matches(one.topic_filter, run.topic)
            ]
            for record in run.records:
                one = Run(run.shard, run.topic, (record,), is_kept=run.is_kept)
                if known and Match(subscriber.inbox, known).shape_for(one.messages[0], record.lsn) is not None:
                    continue
                arrivals = one.arrivals(match)
                if arrivals[0]:
                    yield one, arrivals


class Opening:
    """All subscriptions that are being opened.

    Args:
        max_count: Most records that are kept for each.
    """

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._index: FilterIndex[EarlyRuns] = FilterIndex()

    def __len__(self) -> int:
        return len(self._index)

    @contextmanager
    def keep(self, topic_filter: str) -> Iterator[EarlyRuns]:
        """Keep what tails bring for a filter during the context.

        Raises:
            InvalidNameError: The filter is not valid.
        """
        early = EarlyRuns(self._max_count)
        self._index.add(topic_filter, early)
        try:
            yield early
        finally:
            self._index.discard(topic_filter, early)

    def note(self, run: Run) -> None:
        """A tail brought this run."""
        for early in self._index.match(run.topic):
            early.add(run)
