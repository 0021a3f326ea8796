"""Measurements of the limits and the peers, in the order in which a round makes them."""

from __future__ import annotations

from benchmarks import limits, load
from benchmarks.load import Timing
from benchmarks.runs import Measurement
from benchmarks.sizes import LARGE_BATCH_BYTES, SMALL_BATCH_BYTES, VALUE_BYTES
from benchmarks.stage import Stage

MESSAGES_PER_S = 1000
SYNCED_ONE_BYTES = 256


def limit_measurements(stage: Stage) -> list[Measurement]:
    """Bare loopback and bare synced writes."""
    return [
        Measurement(("limit.copy",), lambda t: {"limit.copy": limits.loopback_copy_bytes_per_s(t) / 1e9}),
        Measurement(("limit.sync-1m",), lambda t: {"limit.sync-1m": stage.synced_file().bytes_per_s(1 << 20, t) / 1e6}),
        Measurement(
            ("limit.sync-128k",),
            lambda t: {"limit.sync-128k": stage.synced_file().bytes_per_s(LARGE_BATCH_BYTES, t) / 1e6},
        ),
        Measurement(
            ("limit.sync-one",),
            lambda t: {"limit.sync-one": load.percentile(stage.synced_file().latencies(SYNCED_ONE_BYTES, t), 0.5)},
        ),
    ]


def peer_measurements(stage: Stage) -> list[Measurement]:
    """JetStream and Redis streams."""

    def push(timing: Timing) -> dict[str, float]:
        latencies_us = stage.nats().delivery_latencies("memory", VALUE_BYTES, MESSAGES_PER_S, timing)
        return {
            "jetstream.push-p50": load.percentile(latencies_us, 0.5),
            "jetstream.push-p99": load.percentile(latencies_us, 0.99),
        }

    return [
        Measurement(
            ("jetstream.file",), lambda t: {"jetstream.file": stage.nats().publish_rate("file", VALUE_BYTES, t)}
        ),
        Measurement(
            ("jetstream.memory",), lambda t: {"jetstream.memory": stage.nats().publish_rate("memory", VALUE_BYTES, t)}
        ),
        Measurement(
            ("jetstream.file-16k",),
            lambda t: {
                "jetstream.file-16k": stage.nats().publish_rate("file", SMALL_BATCH_BYTES, t, window=512)
                * SMALL_BATCH_BYTES
                / 1e6
            },
        ),
        Measurement(
            ("jetstream.file-one",),
            lambda t: {"jetstream.file-one": load.percentile(stage.nats().round_trips("file", VALUE_BYTES, t), 0.5)},
        ),
        Measurement(("jetstream.push-p50", "jetstream.push-p99"), push),
        Measurement(("redis.plain",), lambda t: {"redis.plain": stage.redis_plain().append_rate(VALUE_BYTES, t)}),
        Measurement(("redis.synced",), lambda t: {"redis.synced": stage.redis_synced().append_rate(VALUE_BYTES, t)}),
        Measurement(
            ("redis.synced-one",),
            lambda t: {"redis.synced-one": load.percentile(stage.redis_synced().round_trips(VALUE_BYTES, t), 0.5)},
        ),
    ]
