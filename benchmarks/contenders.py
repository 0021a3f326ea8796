"""Measurements of the limits and the peers, in the order in which a round makes them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import limits, load
from benchmarks.load import Timing
from benchmarks.runs import Measurement
from benchmarks.sizes import LARGE_BATCH_BYTES, MANY_SHARDS, SMALL_BATCH_BYTES, VALUE_BYTES
from benchmarks.stage import Stage

MESSAGES_PER_S = 1000
SYNCED_ONE_BYTES = 256
# It syncs message after message, so a run would not end while all of a larger window are waited for.
SYNCED_WINDOW = 512


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
        *_rates(
            "jetstream.file",
            "jetstream.file-many",
            lambda t, many: stage.nats().publish_rate("file", VALUE_BYTES, t, subjects=many),
        ),
        *_rates(
            "jetstream.synced",
            "jetstream.synced-many",
            lambda t, many: stage.nats_synced().publish_rate(
                "file", VALUE_BYTES, t, window=SYNCED_WINDOW, subjects=many
            ),
        ),
        *_rates(
            "redis.plain",
            "redis.plain-many",
            lambda t, many: stage.redis_plain().append_rate(VALUE_BYTES, t, streams=many),
        ),
        *_rates(
            "redis.synced",
            "redis.synced-many",
            lambda t, many: stage.redis_synced().append_rate(VALUE_BYTES, t, streams=many),
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
        _one_at_a_time("jetstream.file-one", lambda t: stage.nats().round_trips("file", VALUE_BYTES, t)),
        _one_at_a_time("jetstream.synced-one", lambda t: stage.nats_synced().round_trips("file", VALUE_BYTES, t)),
        _one_at_a_time("redis.synced-one", lambda t: stage.redis_synced().round_trips(VALUE_BYTES, t)),
        Measurement(("jetstream.push-p50", "jetstream.push-p99"), push),
    ]


def _rates(one: str, many: str, run: Callable[[Timing, int], float]) -> list[Measurement]:
    """A rate to one stream or subject, and to many."""
    return [
        Measurement((one,), lambda t: {one: run(t, 1)}),
        Measurement((many,), lambda t: {many: run(t, MANY_SHARDS)}),
    ]


def _one_at_a_time(key: str, run: Callable[[Timing], list[float]]) -> Measurement:
    return Measurement((key,), lambda t: {key: load.percentile(run(t), 0.5)})
