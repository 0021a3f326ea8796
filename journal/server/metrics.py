"""The metrics of a server, in the conventions of Prometheus. docs/metrics.md lists them all.

Reading them costs the same with ten shards as with a million: counters are incremented when something happens, figures
that have to be counted come from the last inventory, and no label has a value for each shard, client or topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Final, Protocol

import trio
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from journal.access.login_methods import Logins
from journal.engine import Engine
from journal.engine.parquet.history_table import TableStatus
from journal.engine.statistics import EngineStatistics, LogFigures
from journal.logstore.counting import RequestCounts
from journal.protocol.errors import ERROR_NUMBERS
from journal.server.inventory import Inventory, InventoryTaker
from journal.server.statistics import CLOSING_REASONS, ServerStatistics
from journal.telemetry.histogram import Histogram
from journal.telemetry.loop_monitor import LoopLag, LoopMonitor

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Gauge = GaugeMetricFamily
Counter = CounterMetricFamily

# A series whose first value comes with its first event hides that event: a rate needs a value before it.
_NEVER_REFUSED: Final = dict.fromkeys((error.code for error in ERROR_NUMBERS), 0)
_NEVER_CLOSED: Final = dict.fromkeys(CLOSING_REASONS, 0)


class ServerCollector(Collector):
    """Reads counters when the page is requested; keeps none itself."""

    def __init__(
        self,
        engine: Engine,
        statistics: ServerStatistics,
        inventory: InventoryTaker,
        loop_lag: LoopLag,
        loop_monitor: LoopMonitor,
        why_not_ready: Callable[[], list[str]],
        pushed_bytes: Callable[[], int],
        logins: Logins,
    ) -> None:
        self._engine = engine
        self._statistics = statistics
        self._inventory = inventory
        self._loop_lag = loop_lag
        self._loop_monitor = loop_monitor
        self._why_not_ready = why_not_ready
        self._pushed_bytes = pushed_bytes
        self._logins = logins

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        engine = self._engine.statistics()
        limits = self._engine.config.limits
        yield from _traffic(self._statistics, self._pushed_bytes(), engine.subscription_count, limits.max_connections)
        yield from self._commits(engine)
        yield from self._storage(engine)
        yield from self._health(engine)
        yield from _cluster(engine.log)
        yield from _login_methods(self._logins)
        yield from _counted(self._inventory.latest, self._engine.now_us())

    def _commits(self, engine: EngineStatistics) -> Iterator[Metric]:
        yield Counter("journal_commit_groups", "Commit groups made durable.", engine.commit_groups)
        yield _histogram(
            "journal_acknowledgement_seconds",
            "From the arrival of a commit group's oldest entry to the acknowledgement of all of it.",
            engine.acknowledge_s,
        )
        yield _histogram("journal_fsync_seconds", "Time of the fdatasync of each commit group.", engine.sync_s)
        yield _histogram("journal_commit_group_bytes", "Bytes of each commit group.", engine.group_bytes)
        yield _histogram(
            "journal_commit_group_appends", "Appends acknowledged with each commit group.", engine.group_appends
        )
        yield _committed_lsn(engine.committed_lsn)

    def _storage(self, engine: EngineStatistics) -> Iterator[Metric]:
        storage, shards = self._engine.config.storage, self._engine.config.shards
        yield Gauge("journal_tail_bytes", "Memory of committed batches not in files yet.", engine.tail_bytes)
        yield Gauge("journal_tail_budget_bytes", "Bytes that tails may hold.", storage.tail_budget_bytes)
        yield Gauge("journal_memory_bytes", "Memory of memory segments.", engine.memory_bytes)
        yield Gauge("journal_memory_budget_bytes", "Bytes that memory segments may hold.", storage.memory_budget_bytes)
        yield Gauge("journal_used_bytes", "Bytes of journal files in use.", engine.journal_bytes)
        yield Gauge("journal_budget_bytes", "Bytes that journal files may use.", storage.journal_budget_bytes)
        yield Counter("journal_checkpoints", "Checkpoints made.", engine.checkpoints)
        yield _histogram("journal_checkpoint_seconds", "Time that each checkpoint took.", engine.checkpoint_s)
        yield Gauge(
            "journal_checkpoint_lag_entries",
            "Entries that a recovery would read back.",
            engine.checkpoint_lag_entries,
        )
        yield Gauge(
            "journal_checkpoint_age_seconds",
            "Time since the last checkpoint, or since the start.",
            engine.checkpoint_age_s,
        )
        yield Gauge(
            "journal_disk_free_bytes",
            "Bytes left on the fullest disk that holds a part of the data directory.",
            engine.disk_free_bytes,
        )
        yield Gauge("journal_disk_reserve_bytes", "Appends are refused when less is left.", storage.disk_reserve_bytes)
        yield Gauge("journal_shards", "Shards in the catalogue.", engine.shard_count)
        yield Gauge("journal_shards_limit", "Shards that there may be.", shards.max_shards)
        yield Counter("journal_sealed_segments", "Segments converted to Parquet files.", engine.sealed_segments)
        yield Gauge(
            "journal_conversion_failing",
            "1 while the last conversion of a segment to Parquet has failed, or a shared file cannot be read.",
            int(bool(engine.conversion_failure)),
        )
        counts, shared = engine.conversions, engine.shared_files
        yield Counter("journal_conversion_failures", "Attempts to write Parquet files that failed.", counts.failures)
        yield Counter("journal_gatherings", "Times that segments were gathered into shared files.", counts.gatherings)
        yield Counter("journal_rewritings", "Times that sealed segments were written again.", counts.rewritings)
        waiting, after_s = engine.waiting, self._engine.config.conversion.gather_after_s
        yield Gauge("journal_gathering_waiting_records", "Records that wait until they are gathered.", waiting.records)
        yield Gauge("journal_gathering_waiting_seconds", "How long the oldest have waited.", waiting.seconds)
        yield Gauge("journal_gathering_after_seconds", "How long they are to wait.", after_s)
        yield Gauge("journal_shared_files", "Parquet files with segments of several shards.", shared.count)
        yield _by_label(
            Gauge("journal_shared_file_bytes", "Their bytes: of records that are kept, or not.", labels=["state"]),
            {"live": shared.live_bytes, "dead": shared.dead_bytes},
        )
        yield from self._delta_table(engine.table)

    def _delta_table(self, table: TableStatus) -> Iterator[Metric]:
        yield Gauge("journal_delta_version", "Version of the Delta table; -1 without one.", table.version)
        yield Gauge("journal_delta_commit_timestamp_seconds", "Time of its newest commit.", table.committed_at_s)
        yield Gauge("journal_delta_behind_seconds", "How long it has not had the files that it should.", table.behind_s)
        yield Counter("journal_delta_failures", "Attempts to bring it up to date that failed.", table.failures)
        yield Gauge("journal_delta_waiting_files", "Files that stay for readers who have planned.", table.waiting_files)

    def _health(self, engine: EngineStatistics) -> Iterator[Metric]:
        loop_lag = self._loop_lag
        yield _ready(is_ready=not self._why_not_ready())
        yield Gauge(
            "journal_disk_full",
            "1 while appends are refused for lack of disk.",
            int(engine.disk_full),
        )
        yield Gauge("journal_failed", "1 after a storage failure.", int(self._engine.failure is not None))
        yield Gauge(
            "journal_clock_difference_seconds",
            "How far the system's clock is ahead of the node's time.",
            engine.clock_difference_s,
        )
        yield Gauge(
            "journal_append_time_ahead_seconds",
            "How far the newest append time is ahead of the node's time.",
            engine.append_time_ahead_s,
        )
        yield Gauge("journal_held_back_seconds", "For how long appends have waited for room.", loop_lag.held_back_s)
        yield _histogram("journal_loop_late_seconds", "How late the event loop came to a timer.", loop_lag.late_s)
        yield Counter("journal_loop_stalls", "Times that the loop came over 0.1 s late.", loop_lag.stalls)
        yield Counter("journal_loop_stalled_seconds", "How late the loop came then, in all.", loop_lag.stalled_s)
        monitor = self._loop_monitor
        yield Gauge(
            "journal_loop_longest_step_seconds",
            "Longest iteration of the event loop in the last one to two minutes.",
            monitor.longest_s,
        )
        yield Counter("journal_loop_long_steps", "Iterations that took over 0.05 s.", monitor.long_count)


def _traffic(
    statistics: ServerStatistics, pushed_bytes: int, subscription_count: int, max_connections: int
) -> Iterator[Metric]:
    yield Counter("journal_appends", "Acknowledged batches.", statistics.appends)
    yield Counter("journal_append_bytes", "Bytes of appended frames received.", statistics.append_bytes)
    yield Counter("journal_fetched_bytes", "Bytes of batches sent to fetches.", statistics.fetched_bytes)
    yield Counter("journal_pushed_bytes", "Bytes of batches sent to subscriptions.", pushed_bytes)
    yield Gauge("journal_connections", "Open connections of clients.", statistics.connections)
    yield Gauge("journal_connections_limit", "Connections that may be open.", max_connections)
    yield Counter(
        "journal_connections_opened", "Connections of clients that were accepted.", statistics.connections_total
    )
    yield _by_label(
        Counter("journal_connections_closed", "Connections that the server refused or ended.", labels=["reason"]),
        {**_NEVER_CLOSED, **statistics.connections_closed},
    )
    yield _by_label(
        Counter("journal_refusals", "Refused requests by error code.", labels=["code"]),
        {**_NEVER_REFUSED, **statistics.errors},
    )
    yield Gauge("journal_subscriptions", "Open subscriptions.", subscription_count)


def _login_methods(logins: Logins) -> Iterator[Metric]:
    counts, keys = logins.counts, logins.jwt
    yield _by_label(Counter("journal_logins", "Logins that a method has accepted.", labels=["method"]), counts.accepted)
    yield _by_label(
        Counter("journal_logins_refused", "Logins that a method has refused.", labels=["method"]), counts.refused
    )
    yield Gauge("journal_login_keys", "Keys that check JSON Web Tokens.", keys.key_count)
    yield Counter("journal_login_key_fetches", "Fetches of these keys.", keys.statistics.fetch_count)
    yield Counter("journal_login_key_failures", "Fetches that failed.", keys.statistics.failure_count)
    service = logins.http
    yield _by_label(
        Counter("journal_login_service_requests", "Requests to the service of logins.", labels=["outcome"]),
        service.statistics.outcomes,
    )
    yield Counter("journal_login_service_cached", "Answers from its cache.", service.statistics.cached_count)
    yield Gauge("journal_login_service_open", "1 while it is left alone after failures.", int(service.is_left_alone))


def _cluster(log: LogFigures | None) -> Iterator[Metric]:
    yield _follower(is_follower=False)
    yield _follower_lag(0)
    yield Gauge("journal_cluster_epoch", "Epoch of the store that this server owns.", log.epoch if log else 0)
    yield Counter("journal_log_slots", "Slots written to the log store.", log.slots if log else 0)
    yield Counter("journal_log_bytes", "Bytes of slots written to the log store.", log.size_bytes if log else 0)
    yield Counter("journal_log_file_bytes", "Bytes of files stored there.", log.file_bytes if log else 0)
    requests = log.requests if log else RequestCounts()
    yield _by_label(Counter("journal_log_requests", "Requests to the log store.", labels=["kind"]), requests.by_kind())
    yield Counter("journal_log_sent_bytes", "Bytes of the objects that these created.", requests.sent_bytes)
    yield Counter("journal_log_received_bytes", "Bytes of the objects that these read.", requests.received_bytes)
    yield Gauge(
        "journal_log_checkpoint_age_seconds",
        "Seconds since a checkpoint was stored in the log store, or nothing was new, or since the start.",
        log.checkpoint_age_s if log else 0,
    )
    yield _log_unavailable(is_unavailable=log is not None and log.is_unavailable)


def _log_unavailable(*, is_unavailable: bool) -> Metric:
    what = "1 while the log store does not take writes, or answers no request of this server as it should."
    return Gauge("journal_log_unavailable", what, int(is_unavailable))


def _follower(*, is_follower: bool) -> Metric:
    return Gauge("journal_follower", "1 while another server owns the store, and this one follows.", int(is_follower))


def _follower_lag(lag: int | None) -> Metric:
    """A family without a value if the lag is not known, or there is none."""
    family = Gauge("journal_follower_lag_lsns", "Entries of the log that the owner has, and this follower has not.")
    if lag is not None:
        family.add_metric([], lag)
    return family


def _counted(inventory: Inventory | None, now_us: int) -> Iterator[Metric]:
    """Figures of the last inventory; metric families without values before the first."""
    segments = Gauge("journal_segments", "Segments by state.", labels=["state"])
    segment_bytes = Gauge("journal_segment_bytes", "Bytes of segments by state.", labels=["state"])
    damaged = Gauge("journal_damaged_shards", "Shards stopped because stored data is damaged.")
    cursors = Gauge("journal_cursors", "Cursors of all shards.")
    lag = Gauge("journal_group_lag_records", "Records behind a group's positions, in all.", labels=["group"])
    most = Gauge("journal_group_lag_max_records", "Records behind, in the group's worst shard.", labels=["group"])
    depth = Gauge("journal_cache_queue_records", "Records that wait in a cache queue.", labels=["queue"])
    age = Gauge("journal_cache_queue_oldest_seconds", "Age of the oldest waiting record.", labels=["queue"])
    counted = Gauge("journal_census_age_seconds", "How old the figures are that have to be counted.")
    took = Gauge("journal_census_seconds", "How long it took to count them, pauses and all.")
    if inventory is not None:
        for state, amount in inventory.segments.items():
            segments.add_metric([state], amount.count)
            segment_bytes.add_metric([state], amount.size_bytes)
        damaged.add_metric([], inventory.damaged_shards)
        cursors.add_metric([], inventory.cursors)
        for group in inventory.groups:
            lag.add_metric([group.name], group.lag_records)
            most.add_metric([group.name], group.most_records)
        for queue in inventory.queues:
            depth.add_metric([queue.name], queue.records)
            oldest_us = queue.oldest_us or now_us
            age.add_metric([queue.name], max(0, now_us - oldest_us) / 1e6)
        counted.add_metric([], trio.current_time() - inventory.counted_at)
        took.add_metric([], inventory.took_s)
    return iter((segments, segment_bytes, damaged, cursors, lag, most, depth, age, counted, took))


def _by_label(family: Counter | Gauge, values: Mapping[str, int]) -> Metric:
    for label, value in sorted(values.items()):
        family.add_metric([label], value)
    return family


def _histogram(name: str, what: str, histogram: Histogram) -> Metric:
    counts = list(accumulate(histogram.counts()))
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    family = HistogramMetricFamily(name, what)
    family.add_metric([], list(zip(bounds, counts, strict=True)), histogram.total)
    return family


class StoreMember(Protocol):
    """A server of those that share a store, before it owns the store."""

    @property
    def follows(self) -> bool:
        """Whether another server is known to own the store."""

    @property
    def is_cut_off(self) -> bool:
        """Whether no request to the log store succeeds."""

    def why_waiting(self) -> str:
        """Why it serves no clients; empty if it only recovers its own data."""

    def lag(self) -> int | None:
        """How many entries of the log it has not got yet; None if that is not known."""


class FollowerCollector(Collector):
    """The metrics of a server that serves reads while it follows the owner of its store."""

    def __init__(
        self,
        engine: Engine,
        statistics: ServerStatistics,
        pushed_bytes: Callable[[], int],
        logins: Logins,
        member: StoreMember,
    ) -> None:
        self._engine = engine
        self._statistics = statistics
        self._pushed_bytes = pushed_bytes
        self._logins = logins
        self._member = member

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        engine = self._engine
        yield from _RecoveringCollector(self._member).collect()
        yield from _traffic(
            self._statistics, self._pushed_bytes(), engine.subscription_count, engine.config.limits.max_connections
        )
        yield _committed_lsn(engine.committed_lsn)
        yield from _login_methods(self._logins)


class _RecoveringCollector(Collector):
    """The metrics before the engine is open."""

    def __init__(self, member: StoreMember | None) -> None:
        self._member = member

    def collect(self) -> Iterator[Metric]:
        member = self._member
        yield _ready(is_ready=False)
        yield _follower(is_follower=member is not None and member.follows)
        yield _follower_lag(None if member is None else member.lag())
        yield _log_unavailable(is_unavailable=member is not None and member.is_cut_off)


def _committed_lsn(lsn: int) -> Metric:
    return Gauge("journal_committed_lsn", "Newest durable lsn.", lsn)


def _ready(*, is_ready: bool) -> Metric:
    return Gauge("journal_ready", "1 while appends are taken, as /readyz tells.", int(is_ready))


def page_of(collector: ServerCollector | FollowerCollector) -> Callable[[], bytes]:
    """A function that returns the page: metrics of the server, and those of the process."""
    return _page_of(collector)


def recovering_page(member: StoreMember | None = None) -> Callable[[], bytes]:
    """The same for a server that is still recovering its journal, or follows the owner of its store.

    Args:
        member: It as one of several that share a store; None for a server on its own.
    """
    return _page_of(_RecoveringCollector(member))


def _page_of(collector: Collector) -> Callable[[], bytes]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)
