"""The pages `/livez`, `/readyz` and `/metrics` of a broker, and its metrics, in the conventions of Prometheus.

docs/metrics.md lists all metrics. Counters are incremented where things happen. Gauges that need a look at every
connection are computed when the page is requested. No label has a value for each client, topic or session; bridges are
labelled by their configured names.
"""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import attrs

from broker_adapter.bridge.driver import DRIVER_STATES
from broker_adapter.mqtt.access.quotas import Limit
from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt.delivery import DeliveryStatistics
from broker_adapter.mqtt.model.statistics import BrokerStatistics, Traffic
from broker_adapter.mqtt.rules.follower import Followed
from broker_adapter.mqtt.session import SessionStatistics
from broker_adapter.mqtt.telemetry.health import Health, Serving
from broker_adapter.mqtt.telemetry.merged_metrics import encode_families
from broker_adapter.mqtt.telemetry.store_watch import StoreWatch
from broker_adapter.mqtt.transport.listeners import Listeners
from journal.access.login_methods import Logins
from journal.net.origins import Origins
from journal.telemetry.exposition import CONTENT_TYPE, Family, counter, counters, gauge, gauges, histogram, page_of
from journal.telemetry.http_pages import Page, Reply, Request, health_reply
from journal.telemetry.loop_monitor import LoopLag

Key = TypeVar("Key", bound=str)

_SESSION_EVENTS = (
    "opened", "resumed", "taken_over", "fenced", "forced", "adopted", "expired",
)  # fmt: skip


async def broker_metrics(health: Health, max_connections: int, logins: Logins | None = None) -> list[Family]:
    """All metrics; before clients are accepted, those that exist by then."""
    serving = health.serving
    families = list(_of_process(health))
    if logins is not None:
        families.extend(_login_methods(logins))
    if serving is not None:
        delivery = await serving.broker.look()
        families.extend(_serving(serving, delivery, max_connections))
    return families


def _of_process(health: Health) -> Iterator[Family]:
    yield gauge("journal_broker_ready", "1 while clients are served, as in /readyz.", not health.why_not_ready())
    yield from _loop(health.loop_lag)
    if health.store is not None:
        yield from _store(health.store)
    yield from process_figures()


def _serving(serving: Serving, delivery: DeliveryStatistics, max_connections: int) -> Iterator[Family]:
    broker, statistics = serving.broker, serving.broker.statistics
    yield from _connections(serving.listeners, statistics, broker.quotas.refusals.counts, max_connections)
    yield from _sessions(broker.sessions.statistics)
    yield gauges(
        "journal_broker_subscriptions",
        "Subscriptions of the clients connected here.",
        ("kind",),
        {
            ("own",): statistics.subscriptions - statistics.shared_subscriptions,
            ("shared",): statistics.shared_subscriptions,
        },
    )
    yield from _traffic("received", "from clients", statistics.received)
    yield from _traffic("sent", "to clients", statistics.sent)
    yield counter("journal_broker_received_bytes_total", "Bytes from clients.", statistics.bytes_received)
    yield counter("journal_broker_sent_bytes_total", "Bytes to clients.", statistics.bytes_sent)
    yield counters(
        "journal_broker_dropped_messages_total",
        "Messages that were refused, or not delivered to a subscriber.",
        ("reason",),
        _by(statistics.dropped),
    )
    yield histogram(
        "journal_broker_acknowledgement_seconds",
        "From the receipt of publishes to their PUBACK or PUBREC, one value for all that came at once.",
        statistics.acknowledge_s,
    )
    yield gauge(
        "journal_broker_oldest_publish_seconds",
        "How long the oldest publish has had no outcome, 0 if all have one.",
        broker.publish_watch.oldest_s,
    )
    yield histogram(
        "journal_broker_delivery_seconds",
        "From the receipt of a message, at any broker, to its subscribers here, one value for all that came at once.",
        broker.distributor.delays.seconds,
    )
    yield gauge("journal_broker_queued_messages", "Messages that wait to be sent to a client.", delivery.queued)
    yield gauge("journal_broker_behind_clients", "Clients that catch up from the store.", delivery.behind)
    yield gauge("journal_broker_blocked_clients", "Clients that do not read what is sent.", broker.blocked_count)
    yield counter("journal_broker_delivery_gaps_total", "Ranges of records gone before delivery.", delivery.gaps)
    yield gauge("journal_broker_bans", "Users, clients and networks that may not connect.", len(broker.bans))
    yield from _bridges(serving.bridges.states())
    yield from _rules(serving.rules())


def _connections(
    listeners: Listeners, statistics: BrokerStatistics, refusals: Mapping[Limit, int], max_connections: int
) -> Iterator[Family]:
    label = ("listener",)
    yield gauges("journal_broker_connections", "Open connections.", label, _by(listeners.by_listener))
    yield gauge("journal_broker_connections_limit", "Connections that may be open.", max_connections)
    yield counters(
        "journal_broker_connections_opened_total", "Accepted connections.", label, _by(listeners.accepted_count)
    )
    yield counters(
        "journal_broker_connections_refused_total",
        "Connections that were refused before or with CONNACK.",
        ("reason",),
        _by({"max_connections": listeners.refused_count, "handshake": listeners.failed_count, **statistics.refused}),
    )
    yield counters(
        "journal_broker_connections_ended_total",
        "Connections of clients that the broker ended.",
        ("reason",),
        _by(statistics.ended),
    )
    yield counters(
        "journal_broker_quota_refusals_total",
        "What was refused to users because of [[quotas]].",
        ("limit",),
        _by(refusals),
    )
    yield counter("journal_broker_connects_total", "Clients that were accepted.", statistics.connects_total)


def _sessions(statistics: SessionStatistics) -> Iterator[Family]:
    counts = attrs.asdict(statistics)
    yield gauge("journal_broker_sessions", "Sessions that this broker has open.", statistics.connected_count)
    yield gauge(
        "journal_broker_durable_sessions", "Open sessions that outlive their connection.", statistics.durable_count
    )
    yield counters(
        "journal_broker_session_events_total",
        "Events of sessions.",
        ("event",),
        {(event,): counts[f"{event}_count"] for event in _SESSION_EVENTS},
    )
    yield counter("journal_broker_store_retries_total", "Repeated calls about sessions.", statistics.retry_count)


def _login_methods(logins: Logins) -> Iterator[Family]:
    label, counts, keys = ("method",), logins.counts, logins.jwt
    yield counters("journal_broker_logins_total", "Logins that a method has accepted.", label, _by(counts.accepted))
    yield counters(
        "journal_broker_logins_refused_total", "Logins that a method has refused.", label, _by(counts.refused)
    )
    yield gauge("journal_broker_login_keys", "Keys that check JSON Web Tokens.", keys.key_count)
    yield counter("journal_broker_login_key_fetches_total", "Fetches of these keys.", keys.statistics.fetch_count)
    yield counter("journal_broker_login_key_failures_total", "Fetches that failed.", keys.statistics.failure_count)
    service = logins.http
    cached_count = service.statistics.cached_count
    yield counters(
        "journal_broker_login_service_requests_total",
        "Requests to the service of logins.",
        ("outcome",),
        _by(service.statistics.outcomes),
    )
    yield counter("journal_broker_login_service_cached_total", "Answers from its cache.", cached_count)
    yield gauge("journal_broker_login_service_open", "1 while it is left alone after failures.", service.is_left_alone)


def _traffic(name: str, where: str, traffic: Traffic) -> Iterator[Family]:
    label = ("qos",)
    yield counters(
        f"journal_broker_{name}_messages_total", f"PUBLISH packets {where}.", label, _by_qos(traffic.messages)
    )
    yield counters(
        f"journal_broker_{name}_message_bytes_total", f"Payloads {where}.", label, _by_qos(traffic.payload_bytes)
    )


def _store(store: StoreWatch) -> Iterator[Family]:
    yield gauge("journal_broker_store_up", "1 while the store answers.", store.is_up)
    yield gauge("journal_broker_store_state_seconds", "Time since that changed.", store.for_s)
    yield counter("journal_broker_store_losses_total", "Times that the store stopped answering.", store.loss_count)
    yield gauge(
        "journal_broker_failed_shards",
        "Shards without deliveries to subscribers, because the store cannot read them.",
        store.failed_shard_count,
    )
    yield histogram("journal_broker_store_answer_seconds", "How long the store took to answer.", store.answer_s)


def _loop(loop_lag: LoopLag) -> Iterator[Family]:
    yield histogram("journal_broker_loop_late_seconds", "How late the event loop ran a timer.", loop_lag.late_s)
    yield counter("journal_broker_loop_stalls_total", "Times that it was over 0.1 s late.", loop_lag.stalls)
    yield counter("journal_broker_loop_stalled_seconds_total", "How late it was then, in all.", loop_lag.stalled_s)


def _bridges(states: Mapping[str, str]) -> Iterator[Family]:
    yield gauges(
        "journal_broker_bridge_state",
        "Role of this broker for a bridge: 1 for the present one.",
        ("bridge", "state"),
        {(name, state): state == now for name, now in states.items() for state in dict.fromkeys((*DRIVER_STATES, now))},
    )


def _rules(followed: Followed) -> Iterator[Family]:
    yield gauge(
        "journal_broker_rules_version",
        "Version of the rules that this broker applies, 0 without any.",
        followed.version,
    )
    yield gauge(
        "journal_broker_rules_refused",
        "1 while it applies older rules than those of the store, because it cannot apply these.",
        bool(followed.problem),
    )


def _by(counts: Mapping[Key, int]) -> dict[tuple[str, ...], float]:
    return {(str(label),): count for label, count in counts.items()}


def _by_qos(counts: Iterable[int]) -> dict[tuple[str, ...], float]:
    return {(str(qos),): count for qos, count in enumerate(counts)}


LIVE_PATH: Final = "/livez"
READY_PATH: Final = "/readyz"
METRICS_PATH: Final = "/metrics"
ADMISSION_PATH: Final = "admission"
FAMILIES_PATH: Final = "families"
"""The last two begin without "/", so that no request over HTTP names them."""

_SELF: Final = Path("/proc/self")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/self/stat, counted from after the program's name, which may contain spaces.
_STARTED_TICKS: Final = 19
_VIRTUAL_BYTES: Final = 20
_RESIDENT_PAGES: Final = 21
_CHALLENGE: Final = 'Basic realm="journal-broker", charset="UTF-8"'


def broker_pages(
    health: Health,
    max_connections: int,
    access: AccessControl | None,
    origins: Origins,
    logins: Logins | None = None,
) -> dict[str, Page]:
    """The pages, by path.

    Args:
        health: Health of the broker.
        max_connections: The configured limit of connections.
        access: Users who may connect may see metrics; None: no password is needed. Health needs no password: it has no
            data about clients, and programs that check it have no passwords.
        origins: The web pages that may see metrics without credentials.
        logins: The login methods of the broker, for their metrics.
    """

    async def livez(_request: Request) -> Reply:
        return Reply(b"ok\n")

    async def readyz(_request: Request) -> Reply:
        return health_reply(health.why_not_ready())

    async def metrics(request: Request) -> Reply:
        if refusal := await _refusal(request, access, origins):
            return refusal
        return Reply(page_of(await broker_metrics(health, max_connections, logins)), content_type=CONTENT_TYPE)

    return {LIVE_PATH: livez, READY_PATH: readyz, METRICS_PATH: metrics}


def member_pages(
    health: Health, max_connections: int, access: AccessControl | None, origins: Origins, logins: Logins
) -> dict[str, Page]:
    """The pages of one of several processes for its supervisor, by path; see `broker_pages`.

    They are the two parts of `/metrics`: whether a request may see it, and the metrics in a form that can be merged.
    """

    async def admission(request: Request) -> Reply:
        return await _refusal(request, access, origins) or Reply(b"ok\n")

    async def families(_request: Request) -> Reply:
        return Reply(encode_families(await broker_metrics(health, max_connections, logins)))

    return {ADMISSION_PATH: admission, FAMILIES_PATH: families}


async def _refusal(request: Request, access: AccessControl | None, origins: Origins) -> Reply | None:
    """Why a request may not see the metrics; None if it may."""
    # A browser on a machine that can reach this broker adds no credentials to the requests of a page.
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if not request.authorization and (refusal := origins.refusal(origin, host)):
        return Reply(f"{refusal}\n".encode(), 403)
    if access is not None and not await _may_see(access, request):
        return Reply(b"name a user of access.users_file and its password\n", 401, challenge=_CHALLENGE)
    return None


async def _may_see(access: AccessControl, request: Request) -> bool:
    user, password = request.credentials
    return await access.authenticate("", user, password, f"{request.host}:0") is not None


def process_figures() -> Iterator[Family]:
    """Figures of this process from Linux: families ``process_...``. Those that cannot be read are left out."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process_cpu_seconds_total", "Time of the processor.", usage.ru_utime + usage.ru_stime)
    try:
        figures = (_SELF / "stat").read_text().rpartition(")")[2].split()
        # Linux 6.2 and newer report their number; before, they have to be counted, which is slow for thousands.
        open_count = os.stat(_SELF / "fd").st_size or len(os.listdir(_SELF / "fd"))
    except OSError:
        return
    yield gauge("process_start_time_seconds", "When the process was started.", _started_s(int(figures[_STARTED_TICKS])))
    yield gauge("process_resident_memory_bytes", "Memory.", int(figures[_RESIDENT_PAGES]) * _PAGE_BYTES)
    yield gauge("process_virtual_memory_bytes", "Address space.", int(figures[_VIRTUAL_BYTES]))
    yield gauge("process_open_fds", "Open files and connections.", open_count)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield gauge("process_max_fds", "How many there may be.", float("inf") if most == resource.RLIM_INFINITY else most)


@functools.cache
def _started_s(ticks_since_boot: int) -> float:
    """Start time. It is computed once: a change of the clock must not look like a restart."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(booted_s + ticks_since_boot / _TICKS_PER_S, 2)
