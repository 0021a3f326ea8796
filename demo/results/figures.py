"""Figures of a run that both demos print: latencies by their percentiles, payload bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from demo.clients.publisher import Publisher
from demo.evidence.ledger import Published, SubscriberLedger


@attrs.frozen(slots=True)
class Percentiles:
    """Percentiles of ``count`` latencies, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


def percentiles(latencies_us: Iterable[int]) -> Percentiles:
    """Percentiles by the nearest rank; zeros if there are no values."""
    ordered = sorted(latencies_us)
    if not ordered:
        return Percentiles(0, 0.0, 0.0, 0.0)
    last = len(ordered) - 1
    return Percentiles(len(ordered), ordered[last // 2] / 1e3, ordered[round(last * 0.99)] / 1e3, ordered[-1] / 1e3)


def published_by(publishers: Iterable[Publisher]) -> dict[str, list[Published]]:
    """What was published, by topic."""
    return {topic: each for publisher in publishers for topic, each in publisher.ledger.topics.items()}


def acknowledging(published: Mapping[str, Sequence[Published]], qos: Mapping[str, int]) -> dict[str, Percentiles]:
    """Time to the acknowledgement, by QoS.

    Args:
        published: By topic.
        qos: By kind of telemetry.
    """
    latencies_us: dict[str, list[int]] = {"QoS 1": [], "QoS 2": []}
    for topic, messages in published.items():
        if level := qos[kind_of(topic)]:
            acknowledged = (each for each in messages if each.acknowledged_at_us)
            latencies_us[f"QoS {level}"] += [each.acknowledged_at_us - each.begun_at_us for each in acknowledged]
    return {name: percentiles(each) for name, each in latencies_us.items()}


def delivering(ledger: SubscriberLedger) -> Percentiles:
    """Time from the publish to the delivery at one subscriber."""
    return percentiles(each.delay_us for messages in ledger.topics.values() for each in messages)


def size_bytes(published: Mapping[str, Sequence[Published]]) -> int:
    """Payload bytes of all messages."""
    return sum(each.size_bytes for messages in published.values() for each in messages)


def kind_of(topic: str) -> str:
    """The kind of telemetry: the last level of the topic."""
    return topic.rsplit("/", 1)[-1]
