"""A broker as a process: its store, its listeners, its signals, its orderly shutdown."""

from __future__ import annotations

import math
import resource
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import attrs
import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.bridge.queue_routing import QueueRouting
from broker_adapter.cache_queue import LeaseSettings
from broker_adapter.errors import StorageFailedError, afresh
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.users import AccessControl, ClientIds
from broker_adapter.mqtt.admin.administration import Administration, AtWork
from broker_adapter.mqtt.admin.pages import administration_pages
from broker_adapter.mqtt.bans.applying import ban_follower
from broker_adapter.mqtt.broker.broker import Broker
from broker_adapter.mqtt.broker.composition import (
    access_control_of,
    access_rules_of,
    audit_of,
    broker_id_of,
    credentials_of,
    limits_of,
    listener_limits_of,
    mapping_of,
    quotas_of,
    storage_rules_of,
    tls_of,
    why_no_client_can_connect,
)
from broker_adapter.mqtt.broker.exposure import exposure_of, strangers_of
from broker_adapter.mqtt.config import BrokerConfig
from broker_adapter.mqtt.rules.rule_set import MappingChangedError, RuleSet
from broker_adapter.mqtt.server.gc_tuning import prepare_interpreter
from broker_adapter.mqtt.server.member import Member
from broker_adapter.mqtt.server.shared_rules import SharedRules
from broker_adapter.mqtt.telemetry.health import NOT_OPEN, Health, Serving
from broker_adapter.mqtt.telemetry.metrics import broker_pages, member_pages
from broker_adapter.mqtt.telemetry.store_watch import log_waiting
from broker_adapter.mqtt.transport.listeners import Listeners, Peer
from broker_adapter.mqtt.transport.resting import MayRest
from broker_adapter.opening import is_shared, open_adapter
from journal.access.login_methods import Credentials
from journal.access.rules import AccessRules
from journal.net.certificate_names import name_in
from journal.net.listening import bind, listen, listens_at, share
from journal.net.origins import Origins
from journal.settings.access import is_loopback
from journal.settings.values import ConfigurationError
from journal.stop_signals import STOPS_AND_RELOAD, all_signals
from journal.telemetry.exposure import Exposure, ExposureLog
from journal.telemetry.http_pages import HttpPages, Page, Resource
from journal.telemetry.log import configure_log
from shards import compiled

_GOODBYE_S: Final = 5.0
_OWN_DESCRIPTORS: Final = 100
HTTP: Final = "http"
MAIN: Final = "mqtt"

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


async def run_broker(
    config: BrokerConfig,
    read_again: Callable[[], BrokerConfig],
    *,
    lease: LeaseSettings | None = None,
    member: Member | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until SIGTERM or SIGINT, until its own store fails, or until its store was restored.

    It reports its addresses, as ``name=HOST:PORT``, once it accepts clients.
    While the store cannot be reached it waits, and logs that.

    Args:
        config: The settings.
        read_again: Returns the settings, read again at SIGHUP.
        lease: Times after which another broker takes over a bridge; the defaults if None.
        member: Set in one of several processes, which share their addresses and have no pages of their own.
        task_status: Gets the addresses; an empty list if it was stopped before it was ready.

    Raises:
        ConfigurationError: A file that the settings name cannot be used.
        StorageFailedError: The store is in this process (``embedded:``) and has failed; or it is a server that was
            restored from a backup, or another server answers at its address (`ServerRestoredError`).
        StorageError: The store refuses this broker.
        OSError: An address cannot be listened on.
    """
    log_limit = configure_log(config.log, ("journal", "broker_adapter"))
    prepare_interpreter()
    process = _Process(config, read_again, lease, member)
    _allow_descriptors(config.limits.max_connections)
    async with background_tasks() as telling:
        telling.start_soon(log_limit.keep_telling)
        try:
            await process.run(task_status)
        finally:
            log_limit.tell(also_unfinished=True)
            process.audit.close()


@attrs.frozen
class _Readable:
    """Settings that are read again at SIGHUP."""

    credentials: Credentials
    rules: AccessRules
    tls: ssl.SSLContext | None


class _Process:
    """One run of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        read_again: Callable[[], BrokerConfig],
        lease: LeaseSettings | None,
        member: Member | None,
    ) -> None:
        self._config = config
        self._read_again = read_again
        self._lease = lease
        self._member = member
        self._access: AccessControl = access_control_of(config)
        self.audit: BrokerAudit = audit_of(config, self._access)
        self._tls = tls_of(config)
        self._listeners: Listeners | None = None
        self._stopping = trio.Event()
        self._life = trio.CancelScope()
        self._is_ready = False
        self._store_failure: StorageFailedError | None = None
        self._health = Health(config.broker.store, self._stopping.is_set)
        self._at_work: AtWork | None = None
        self._broker_running: Broker | None = None
        self._exposure: ExposureLog | None = None
        if member is None or member.number == 1:
            # It is the same at all processes of a broker, so one of them logs it.
            self._exposure = ExposureLog(log, _exposure_of(config, self._access.logins.credentials))

    async def run(self, task_status: trio.TaskStatus[list[str]]) -> None:
        async with trio.open_nursery() as nursery:
            # Signals are handled from before the start until after the end, which a second one must not interrupt.
            await nursery.start(self._take_signals)
            nursery.start_soon(self.audit.keep_telling)
            if self._member is not None:
                nursery.start_soon(self._member.obey, self)
            with self._life:
                await self._serve(task_status)
            if not self._is_ready:
                task_status.started([])
            nursery.cancel_scope.cancel()
        log.info("stopped")
        if self._store_failure is not None:
            raise afresh(self._store_failure)

    async def _serve(self, task_status: trio.TaskStatus[list[str]]) -> None:
        sockets = self._bound()
        logins = self._access.logins
        for_clients = {name: sock for name, sock in sockets.items() if name != HTTP}
        health = self._health
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(logins.run)
                if self._config.listen.http:
                    nursery.start_soon(health.loop_lag.run)
                if HTTP in sockets:
                    nursery.start_soon(self._http().serve, sockets[HTTP])
                waiting = trio.CancelScope()
                nursery.start_soon(log_waiting, self._config.broker.store, waiting)
                broker_id = broker_id_of(self._config)
                async with open_adapter(
                    self._config.broker.store, name=broker_id, ends_at_restore=True, first_within_s=math.inf
                ) as adapter:
                    rules = SharedRules(adapter, self._config, broker_id)
                    agreed = await rules.agree()
                    bridges = Bridges(adapter, rules.bridge_specs, broker_id, lease=self._lease)
                    broker = self._broker_running = self._broker(adapter, broker_id, agreed, bridges.queue_routing)
                    # Inside the adapter's context: the broker's last writes go to the store.
                    async with trio.open_nursery() as serving:
                        serving.start_soon(health.watch_store, adapter)
                        await serving.start(bridges.run)
                        await serving.start(broker.run)
                        await serving.start(self._follow_rules, rules, broker, bridges)
                        follower = ban_follower(adapter, broker_id, broker.bans, broker.follow_bans, self.audit)
                        await serving.start(follower.run)
                        waiting.cancel()
                        listeners = self._listeners_of(broker)
                        if self._member is not None:
                            # From now on it gets its share of the connections.
                            for sock in for_clients.values():
                                listen(sock)
                        await serving.start(listeners.run, for_clients)
                        health.serving = Serving(broker, bridges, listeners, lambda: rules.followed)
                        self._at_work = AtWork(adapter, broker_id, is_shared(self._config.broker.store))
                        serving.start_soon(self._stop_after_failure, adapter)
                        self._is_ready = True
                        if self._exposure is not None:
                            log.info("started", hot_loops=compiled.DESCRIPTION)
                        task_status.started([f"{name}={listens_at(sock)}" for name, sock in sockets.items()])
                        await self._stopping.wait()
                        listeners.stop_accepting()
                        if self._member is not None:
                            # Other processes get the connections that would wait here in vain.
                            for sock in for_clients.values():
                                sock.close()
                        with trio.move_on_after(_GOODBYE_S):
                            await broker.stop()
                            await listeners.wait_empty()
                        serving.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
        finally:
            for sock in sockets.values():
                sock.close()

    def _bound(self) -> dict[str, socket.socket]:
        addresses = self._config.listen.addresses()
        if self._member is None:
            return bind(addresses, main=MAIN)
        # The supervisor answers over HTTP.
        return share({name: address for name, address in addresses.items() if name != HTTP}, main=MAIN)

    async def _stop_after_failure(self, adapter: StorageAdapter) -> None:
        """Stop when it is not safe to continue.

        A store in this process that has failed acknowledges nothing until the process restarts. A store that was
        restored from a backup has other sessions than those in memory here, and the offsets in these sessions belong to
        other records: the broker reads them from the store when it starts again.
        """
        self._store_failure = await adapter.wait_failed()
        log.error("stopping, as the store failed, was restored or is another one", reason=str(self._store_failure))
        self._stopping.set()

    async def _follow_rules(
        self,
        rules: SharedRules,
        broker: Broker,
        bridges: Bridges,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            await rules.follow(broker, bridges, task_status=task_status)
        except MappingChangedError as error:
            self._store_failure = error
            log.error("stopping, to restart with other mapping rules", reason=str(error))  # noqa: TRY400
            self._stopping.set()

    def _broker(self, adapter: StorageAdapter, broker_id: str, rules: RuleSet, queue_routing: QueueRouting) -> Broker:
        config = self._config
        return Broker(
            adapter,
            broker_id,
            access=self._access,
            mapping=mapping_of(rules),
            rules=storage_rules_of(rules),
            limits=limits_of(config.limits, config.broker.processes),
            quotas=quotas_of(config),
            audit=self.audit,
            system_interval_s=config.broker.sys_interval_s,
            version=broker_version(),
            queue_routing=queue_routing,
        )

    def _listeners_of(self, broker: Broker) -> Listeners:
        def serve(stream: trio.abc.Stream, peer: Peer) -> Awaitable[MayRest | None]:
            return broker.serve_stream(
                stream,
                peer=peer.address,
                transport=peer.transport,
                certificate_name=name_in(peer.certificate, self._access.logins.credentials.certificate_field),
                may_rest=peer.may_rest,
            )

        origins = Origins(self._config.listen.websocket_origins)
        self._listeners = Listeners(serve, listener_limits_of(self._config.limits), self._tls, origins)
        return self._listeners

    @property
    def pages(self) -> dict[str, Page | Resource]:
        """The pages by path; in one of several processes also those for the supervisor."""
        asks = None if is_loopback(self._config.listen.http) else self._access
        origins = Origins(self._config.listen.websocket_origins)
        administration = Administration(self._access, self._look_for_work, self.audit, origins=origins)
        max_connections, logins = self._config.limits.max_connections, self._access.logins
        inner = {} if self._member is None else member_pages(self._health, max_connections, asks, origins, logins)
        return {
            **broker_pages(self._health, max_connections, asks, origins, logins),
            **administration_pages(administration, self._config.access.max_bans, broker_version()),
            **inner,
        }

    def _http(self) -> HttpPages:
        is_for_all = is_loopback(self._config.listen.http)
        return HttpPages(self.pages, tls=lambda: None if is_for_all else self._tls)

    def _look_for_work(self) -> AtWork | str:
        return self._at_work or "; ".join(self._health.why_not_ready()) or NOT_OPEN

    # Signals

    async def _take_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        with all_signals(*STOPS_AND_RELOAD) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    await self.reload()
                else:
                    self.request_stop(signal.Signals(number).name)

    def request_stop(self, reason: str) -> None:
        """Begin to stop in order.

        Args:
            reason: Name of the signal, or why else, for the log.
        """
        log.info("already stopping" if self._stopping.is_set() else "stopping", signal=reason)
        self._stopping.set()
        if not self._is_ready:
            # The start is cancelled: no client is connected yet.
            self._life.cancel()

    async def reload(self) -> None:
        """Apply the settings that may change while the broker runs; if one of them is wrong, none is applied."""
        try:
            config = self._read_again()
            readable = await trio.to_thread.run_sync(_read, config)
            self.audit.reopen()
        except ConfigurationError as error:
            log.error("not reloaded, everything stays as it was", reason=str(error))  # noqa: TRY400 it is no bug of ours
            self.audit.record("reload", outcome=error.code)
            return
        self._access.logins.credentials = readable.credentials
        self._access.rules = readable.rules
        self._access.administrators = config.access.administrators
        self._access.client_ids = ClientIds(config.access.client_ids)
        self._tls = readable.tls
        if self._listeners is not None:
            self._listeners.tls = readable.tls
        if self._broker_running is not None:
            await self._broker_running.follow_rights()
        self.audit.record("reload")
        log.info(
            "reloaded",
            users=len(readable.credentials.users or ()),
            rules=len(config.access.rules),
            certificates=readable.tls is not None,
        )
        if self._exposure is not None:
            self._exposure.reloaded(_exposure_of(in_use(self._config, config), readable.credentials))
        if RuleSet.of(config) != RuleSet.of(self._config):
            log.warning("changed rules apply once they are stored: use `journal-broker apply FILE`")
        if changed := _others_changed(self._config, config):
            log.warning("changed settings that apply only after a restart", sections=changed)


def _read(config: BrokerConfig) -> _Readable:
    return _Readable(credentials_of(config), access_rules_of(config), tls_of(config))


def _exposure_of(config: BrokerConfig, credentials: Credentials) -> Exposure:
    if missing := why_no_client_can_connect(config, credentials):
        return Exposure(missing, is_remote=False, is_questionable=True)
    return exposure_of(config, len(credentials.users or ()), strangers_of(config, credentials))


def in_use(old: BrokerConfig, new: BrokerConfig) -> BrokerConfig:
    """The settings that hold after a reload: those of ``new`` that are read again, and otherwise those of ``old``."""
    return attrs.evolve(old, access=attrs.evolve(new.access, anonymous=old.access.anonymous), tls=new.tls)


def _others_changed(old: BrokerConfig, new: BrokerConfig) -> list[str]:
    """Names of the sections that changed and are not read again, except for rules."""
    unread = attrs.evolve(
        old.access,
        users_file="",
        administrators=(),
        client_ids=(),
        logins=(),
        roles=(),
        rules=(),
        default=new.access.default,
    )
    same = attrs.evolve(new.access, users_file="", administrators=(), client_ids=(), logins=(), roles=(), rules=())
    rules = ("storage", "mapping", "bridge")
    names = [field.name for field in attrs.fields(BrokerConfig) if field.name not in ("access", "tls", *rules)]
    changed = [name for name in names if getattr(old, name) != getattr(new, name)]
    return [*changed, *(["access"] if unread != same else [])]


def broker_version() -> str:
    """Name and version of the program."""
    try:
        return f"journal-broker {version('journal-engine')}"
    except PackageNotFoundError:
        # It runs from the source tree.
        return "journal-broker"


def _allow_descriptors(connections: int) -> None:
    """Raise the soft limit of open files, which is often 1,024, as far as it may be raised."""
    wanted = connections + _OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    reached = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    if reached < connections:
        log.warning(
            "the limit of open files is lower than that of connections; raise LimitNOFILE or lower "
            "limits.max_connections",
            allowed=reached,
            max_connections=connections,
        )
