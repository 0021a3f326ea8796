"""The result of a run: the checks of the ledgers, and the figures for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from demo.clients.base_crowd import REPLAY, WATCHER
from demo.clients.crowd import GROUP, MEMORY_TOPICS, NOT_KEPT, QOS, WAREHOUSE, Crowd
from demo.clients.publisher import Publisher
from demo.evidence.check import Seen, TopicEvidence, TopicResult, check_topic
from demo.evidence.ledger import Published
from demo.evidence.read_back import ModeHistory, ReadBack
from demo.observations import Observations
from demo.results.figures import Percentiles, acknowledging, delivering, kind_of, published_by, size_bytes
from demo.results.history import History
from shards.topics.topic_filters import matches


@attrs.frozen(slots=True, kw_only=True)
class Outcome:
    """The result of a run.

    Attributes:
        topics: Result of each topic.
        modes: Mode history of each topic's shard.
        publishing_s: From the first sample to the last acknowledgement.
        published_bytes: Payload bytes of what was published.
        acknowledging: Time to the acknowledgement, by QoS.
        delivering: Time from the publish to the delivery at a subscriber that was connected.
        broker_again_s: From the kill of the broker until its publisher got an acknowledgement from another one.
        server_again_s: From the kill of the server until a publisher got an acknowledgement from the new one.
        away_s: How long the durable session was away.
        catching_up: Messages it received after its return, and how many seconds that took.
        replayed: Messages that were replayed from the store, and how many seconds that took.
        outage: How long the warehouse was out, in seconds, how many messages waited for it then, and after how many
            seconds its queue was empty.
        read_back: Records that were read back, their bytes, and how many seconds that took.
        damages: Problems found by the offline check of the data directory.
        history: Figures of Spark about the sealed segments.
    """

    topics: Sequence[TopicResult]
    modes: Mapping[str, ModeHistory]
    publishing_s: float
    published_bytes: int
    acknowledging: Mapping[str, Percentiles]
    delivering: Percentiles
    broker_again_s: float
    server_again_s: float
    away_s: float
    catching_up: tuple[int, float]
    replayed: tuple[int, float]
    outage: tuple[float, int, float]
    read_back: tuple[int, int, float]
    damages: Sequence[str]
    history: History

    @property
    def broken(self) -> list[str]:
        """Promises that were not kept, a line each."""
        lines = [line for topic in self.topics for line in topic.broken]
        lines += [f"offline check: {damage}" for damage in self.damages]
        lines += self.history.broken
        if not self.topics:
            lines.append("nothing was published: there is no telemetry to read on this machine")
        return lines


def outcome_of(
    crowd: Crowd,
    observations: Observations,
    stored: Mapping[str, ReadBack],
    modes: Mapping[str, ModeHistory],
    damages: Sequence[str],
    history: History,
) -> Outcome:
    """Check everything, and compute the figures."""
    published = published_by(crowd.publishers)
    return Outcome(
        topics=[_check(crowd, observations, topic, published[topic], stored.get(topic)) for topic in sorted(published)],
        modes=modes,
        publishing_s=observations.publishing_s,
        published_bytes=size_bytes(published),
        acknowledging=acknowledging(published, QOS),
        delivering=delivering(crowd.watcher.ledger),
        broker_again_s=_seconds_until(
            crowd.publishers[:1], observations.broker_killed_at_us, observations.broker_killed_at_us
        ),
        server_again_s=_seconds_until(
            crowd.publishers, observations.server_killed_at_us, observations.server_back_at_us
        ),
        away_s=observations.away_s,
        catching_up=observations.catching_up,
        replayed=observations.replayed,
        outage=(observations.warehouse_s, observations.queue_grew_to, observations.drained_s),
        read_back=(
            sum(len(read.found) for read in stored.values()),
            sum(read.size_bytes for read in stored.values()),
            sum(read.seconds for read in stored.values()),
        ),
        damages=damages,
        history=history,
    )


def _seconds_until(publishers: Sequence[Publisher], since_us: int, later_than_us: int) -> float:
    """From a moment to the first acknowledgement of a message that was published after the other moment."""
    found = (publisher.ledger.acknowledged_of_later_than(later_than_us) for publisher in publishers)
    return (min((at_us for at_us in found if at_us is not None), default=since_us) - since_us) / 1e6


def _check(
    crowd: Crowd, observations: Observations, topic: str, published: Sequence[Published], stored: ReadBack | None
) -> TopicResult:
    kind = kind_of(topic)
    is_kept = kind not in NOT_KEPT
    return check_topic(
        TopicEvidence(
            name=topic,
            qos=QOS[kind],
            is_stored=is_kept,
            may_lose=matches(MEMORY_TOPICS, topic),
            published=published,
            found=stored.found if stored else [],
            gaps=stored.gaps if stored else [],
            seen={
                name: Seen(
                    received=ledger.topics[topic],
                    shares=name == GROUP,
                    from_store=name == REPLAY,
                    from_queue=name == WAREHOUSE,
                )
                for name, ledger in crowd.ledgers.items()
                if is_kept or name == WATCHER
            },
            is_sent_again=any(publisher.client.losses for publisher in crowd.publishers),
            killed_at_us=observations.server_killed_at_us,
        )
    )
