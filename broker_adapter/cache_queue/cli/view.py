"""Figures for operators from the state of a queue: rates, its driver, the time to drain. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from broker_adapter.cache_queue.progress import total
from broker_adapter.cache_queue.queue import QueueState, settings_of
from command_line.quantities import format_duration
from journal.settings.values import format_size
from shards.model import SegmentKind
from shards.quantities import counted

_MICROSECONDS = 1_000_000
_SILENT_AFTER_S = 25
_DRAINING = "draining"
_NEVER_S = 10 * 365 * 86_400


@attrs.frozen
class Rates:
    """Records per second that are put in and that leave.

    Attributes:
        seconds: Time over which the two were measured here; 0 if a driver reported them.
    """

    into: float
    out: float
    seconds: float = 0.0


@attrs.frozen
class QueueView:
    """The state of a queue at a time.

    Attributes:
        rates: None if they are not known yet.
    """

    state: QueueState
    now_us: int
    rates: Rates | None

    @property
    def oldest_age_s(self) -> int:
        """How long the oldest record has waited; 0 if none waits."""
        return max(0, self.now_us - self.state.oldest_us) // _MICROSECONDS if self.state.oldest_us else 0

    @property
    def leaseholder(self) -> str:
        """The process that took the lease and did not release it, running or not; empty if the lease is free."""
        return self.state.lease.holder if self.state.lease is not None else ""

    @property
    def holder(self) -> str:
        """The process that drives the queue; empty if none does, or if it has not reported for too long."""
        return "" if self.silent_s else self.leaseholder

    @property
    def silent_s(self) -> int:
        """Seconds since the last report of the process that has the lease; 0 if that is recent.

        A driver reports at once when it takes the lease, and at least every ten seconds; except a process that drains
        the queue once (`journal-spark drain`), which reports only when it has finished.
        """
        status = self.state.status
        if not self.leaseholder or status is None or status.state == _DRAINING:
            return 0
        silent_s = (self.now_us - status.updated_us) // _MICROSECONDS
        return silent_s if silent_s >= _SILENT_AFTER_S else 0

    @property
    def activity(self) -> str:
        """The state of the breaker, or why nothing is sent to the sink."""
        if self.state.definition.is_paused:
            return "paused"
        if not self.holder:
            return "not driven"
        status = self.state.status
        return "starting" if status is None or status.holder != self.holder else status.state

    @property
    def driven_by(self) -> str:
        """The holder, for output."""
        if self.silent_s:
            silence = format_duration(self.silent_s)
            return f"none: {self.leaseholder} has the lease and has not renewed it for {silence}"
        return self.holder or "none"

    @property
    def in_memory_count(self) -> int:
        """Records that wait in the store's memory; they would be lost with its node."""
        first_offset = self.state.depth.first_offset
        return sum(
            max(0, segment.next_offset - max(segment.base_offset, first_offset))
            for segment in self.state.shard.segments
            if segment.kind is SegmentKind.MEMORY
        )


def reported_rates(state: QueueState, now_us: int) -> Rates | None:
    """The rates that the queue's driver reported lately; None if there is none or it does not report."""
    view = QueueView(state, now_us, None)
    status = state.status
    if status is None or not view.holder or status.holder != view.holder:
        return None
    return Rates(status.in_rate, status.out_rate)


def measured_rates(before: QueueState, after: QueueState, seconds: float) -> Rates:
    """The rates between two reads. All records that leave are counted, with any outcome."""
    if seconds <= 0 or before.shard.shard_id != after.shard.shard_id:
        return Rates(0.0, 0.0, seconds)
    out_count = total(after.progress.counts) - total(before.progress.counts)
    return Rates(max(0, put_in(after) - put_in(before)) / seconds, max(0, out_count) / seconds, seconds)


def put_in(state: QueueState) -> int:
    """Records that were put in since the queue was created: those that left, those that wait, those that are lost."""
    return total(state.progress.counts) + state.depth.record_count + state.lost_count


def time_to_drain(view: QueueView) -> tuple[float | None, str]:
    """Time until the queue is empty at the present rates: in seconds (None for never), and as text."""
    count = view.state.depth.record_count
    if not count:
        return 0.0, "nothing waits"
    if view.state.definition.is_paused:
        return None, f"never while it is paused; `journal queue resume {view.state.name}`"
    if not view.holder:
        return None, "never while no process drives it"
    if view.rates is None or not view.rates.out:
        return None, "never at the present rates: nothing leaves"
    surplus = view.rates.out - view.rates.into
    if surplus <= 0:
        return None, "never at these rates: records come in at least as fast as they leave"
    seconds = count / surplus
    if seconds > _NEVER_S:
        return None, "more than ten years at these rates"
    return seconds, f"about {format_duration(max(1, round(seconds)))}"


def outcomes(state: QueueState) -> dict[str, int]:
    """Counts of all records by outcome."""
    counts = state.progress.counts
    return {
        "confirmed": counts.confirmed,
        "dead_lettered": counts.dead_lettered,
        "dropped_oldest": counts.dropped_oldest,
        "expired": counts.expired,
        "lost": counts.lost + state.lost_count,
        "purged": counts.purged,
        "rejected": sum(writer.rejected for writer in state.writers.values()),
        "dropped_newest": sum(writer.dropped_newest for writer in state.writers.values()),
    }


_OUTCOMES = {
    "confirmed": "delivered",
    "dead_lettered": "set aside as dead letters",
    "expired": "expired",
    "dropped_oldest": "dropped as the oldest",
    "lost": "lost with the store's memory",
    "purged": "purged",
}


def outcomes_between(before: QueueState, after: QueueState, waited_count: int) -> str:
    """Outcomes of the records that left between two reads, as text.

    Args:
        waited_count: Number of records that the text is about. If more have left, it says that newer ones are included.
    """
    then, now = outcomes(before), outcomes(after)
    counts = {words: now[reason] - then[reason] for reason, words in _OUTCOMES.items()}
    text = ", ".join(f"{count:,} {words}" for words, count in counts.items() if count > 0)
    return f"including newer ones, {text}" if sum(counts.values()) > waited_count else text


def bounds(state: QueueState) -> Iterator[tuple[str, str]]:
    """The queue's settings, as text."""
    settings = settings_of(state.definition)
    yield "mode", settings.mode.value
    if settings.mode.value == "hybrid":
        yield "in memory up to", format_size(settings.memory_bytes)
    most = [format_size(settings.max_bytes)] if settings.max_bytes else []
    most += [counted(settings.max_records, "record")] if settings.max_records else []
    yield "holds at most", " and ".join(most) or "no bound"
    yield "max age", format_duration(settings.max_age_s) if settings.max_age_s else "never"
    yield "when full", settings.overflow.value


def rate(value: float) -> str:
    """A rate as text."""
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:,.1f}/s"


def as_json(view: QueueView) -> dict[str, object]:
    """The whole view as JSON, for scripts."""
    state, rates = view.state, view.rates
    status = state.status
    depth = state.depth
    return {
        "queue": state.name,
        "queue_id": state.definition.queue_id,
        "settings": state.definition.settings,
        "mode": state.definition.settings.get("mode", ""),
        "records": depth.record_count,
        "bytes": depth.size_bytes,
        "records_in_memory": view.in_memory_count,
        "first_offset": depth.first_offset,
        "next_offset": depth.next_offset,
        "oldest_us": state.oldest_us,
        "oldest_age_s": view.oldest_age_s,
        "in_rate": None if rates is None else round(rates.into, 3),
        "out_rate": None if rates is None else round(rates.out, 3),
        "rates_measured_over_s": None if rates is None else round(rates.seconds, 3),
        "time_to_drain_s": time_to_drain(view)[0],
        "state": view.activity,
        "is_paused": state.definition.is_paused,
        "holder": view.holder,
        "epoch": 0 if state.lease is None else state.lease.epoch,
        "status_updated_us": 0 if status is None else status.updated_us,
        "since_us": 0 if status is None else status.since_us,
        "reason": "" if status is None else status.reason,
        "next_attempt_us": 0 if status is None else status.next_attempt_us,
        "counts": outcomes(state),
        "writers": {
            name: {"rejected": writer.rejected, "dropped_newest": writer.dropped_newest}
            for name, writer in state.writers.items()
        },
        "dead_letters": state.dead_letter_count,
        "shard": state.shard,
    }
