"""What an operator reads off a queue's state."""

from __future__ import annotations

import pytest

from broker_adapter.cache_queue.cli.view import (
    QueueView,
    Rates,
    bounds,
    measured_rates,
    rate,
    reported_rates,
    time_to_drain,
)
from broker_adapter.cache_queue.gauge import depth_of
from broker_adapter.cache_queue.queue import QueueState
from broker_adapter.cache_queue.stored import Counts, Definition, Lease, Progress, Status
from shards.model import SegmentInfo, SegmentKind, ShardConfig, ShardInfo

NOW_US = 1_700_000_000_000_000
LEASE = Lease("broker-1", "c", 1, 0)


def state(
    *,
    first_offset: int = 0,
    next_offset: int = 100,
    is_paused: bool = False,
    lease: Lease | None = LEASE,
    status: Status | None = None,
    settings: dict[str, str | int] | None = None,
    shard_id: int = 1,
) -> QueueState:
    segment = SegmentInfo(SegmentKind.LOG, 0, next_offset, 1, 0, closed=False)
    shard = ShardInfo("$queue/q", shard_id, ShardConfig(), 0, 0, next_offset, 0, 0, (segment,))
    definition = Definition("id", shard_id, settings or {}, is_paused)
    progress = Progress(shard_id, first_offset, Counts(confirmed=first_offset))
    depth = depth_of(shard, first_offset)
    return QueueState("q", definition, shard, progress, depth, 0, NOW_US, status, lease, {}, 0)


def status(holder: str = "broker-1", age_s: int = 0) -> Status:
    return Status(holder, "down", 0, "", 0, Counts(), 0, 1.0, 2.0, NOW_US - age_s * 1_000_000)


@pytest.mark.parametrize(
    ("seen", "rates", "seconds", "words"),
    [
        (state(next_offset=0), Rates(5, 5), 0.0, "nothing waits"),
        (state(), Rates(0, 10), 10.0, "about 10s"),
        (state(), Rates(9, 10), 100.0, "about 1m40s"),
        (state(), Rates(0, 1000), 0.1, "about 1s"),
        (state(), Rates(10, 10), None, "never at these rates: records come in at least as fast as they leave"),
        (state(), Rates(11, 10), None, "never at these rates: records come in at least as fast as they leave"),
        (state(), Rates(0, 0), None, "never at the present rates: nothing leaves"),
        (state(), None, None, "never at the present rates: nothing leaves"),
        (state(lease=None), Rates(0, 10), None, "never while no process drives it"),
        (state(lease=Lease("", "c", 1, 0)), Rates(0, 10), None, "never while no process drives it"),
        (state(is_paused=True), Rates(0, 10), None, "never while it is paused; `journal queue resume q`"),
        (state(next_offset=10**12), Rates(0, 10), None, "more than ten years at these rates"),
    ],
)
def test_the_time_to_drain(seen: QueueState, rates: Rates | None, seconds: float | None, words: str) -> None:
    assert time_to_drain(QueueView(seen, NOW_US, rates)) == (seconds, words)


def test_rates_are_those_of_who_drives_it_now_and_lately_said_so() -> None:
    assert reported_rates(state(status=status()), NOW_US) == Rates(1.0, 2.0)
    assert reported_rates(state(status=status(age_s=60)), NOW_US) is None
    assert reported_rates(state(status=status("broker-2")), NOW_US) is None
    assert reported_rates(state(status=status(), lease=None), NOW_US) is None
    assert reported_rates(state(), NOW_US) is None


def test_rates_are_measured_between_two_looks() -> None:
    before, after = state(first_offset=10, next_offset=100), state(first_offset=30, next_offset=110)
    assert measured_rates(before, after, 2.0) == Rates(5.0, 10.0, 2.0)
    assert measured_rates(before, state(shard_id=2, next_offset=1000), 2.0) == Rates(0.0, 0.0, 2.0)
    assert measured_rates(before, after, 0.0) == Rates(0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("seen", "doing", "driven_by"),
    [
        (state(status=status()), "down", "broker-1"),
        (
            state(status=status(age_s=60)),
            "not driven",
            "none: broker-1 has the lease and has not renewed it for 1m",
        ),
        (
            state(status=status("broker-2", age_s=60)),
            "not driven",
            "none: broker-1 has the lease and has not renewed it for 1m",
        ),
        (state(status=status("broker-2")), "starting", "broker-1"),
        (state(), "starting", "broker-1"),
        (state(lease=None, status=status()), "not driven", "none"),
        (state(is_paused=True, status=status()), "paused", "broker-1"),
    ],
)
def test_who_does_what(seen: QueueState, doing: str, driven_by: str) -> None:
    view = QueueView(seen, NOW_US, None)
    assert (view.activity, view.driven_by) == (doing, driven_by)


def test_age_is_that_of_the_oldest_and_never_negative() -> None:
    assert QueueView(state(), NOW_US + 5_000_000, None).oldest_age_s == 5
    assert QueueView(state(), NOW_US - 5_000_000, None).oldest_age_s == 0


def test_bounds_in_words() -> None:
    assert dict(bounds(state(settings={"max_bytes": 0, "max_records": 0}))) == {
        "mode": "file",
        "holds at most": "no bound",
        "max age": "never",
        "when full": "reject",
    }
    hybrid = {"mode": "hybrid", "max_bytes": 1 << 30, "max_records": 5000, "max_age_s": 5400, "memory_bytes": 1 << 20}
    assert dict(bounds(state(settings=hybrid))) == {
        "mode": "hybrid",
        "in memory up to": "1 MiB",
        "holds at most": "1 GiB and 5,000 records",
        "max age": "1h30m",
        "when full": "reject",
    }


def test_rates_read_well() -> None:
    assert [rate(value) for value in (0.0, 0.25, 9.94, 10.0, 12345.6)] == ["0/s", "0.2/s", "9.9/s", "10/s", "12,346/s"]
