"""One run of the server process: settings, sockets, recovery, and signals until it stops.

The server itself is `journal.server.server`.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import structlog
import trio

from journal.access.audit import AuditEntry
from journal.engine import Engine, RecoveryReport, open_engine
from journal.net.listening import bind, listens_at, reached_at
from journal.server.cluster.membership import Membership, joined
from journal.server.exposure import exposure_of
from journal.server.http import Front, Identity, no_identity, serve_http
from journal.server.http_connections import Encryption
from journal.server.interpreter import collect_rarely, prepare_interpreter
from journal.server.metrics import FollowerCollector, page_of
from journal.server.security import Security, check_reload, in_use, read, unread_changes
from journal.server.server import Server
from journal.server.statistics import ServerStatistics
from journal.settings.server import OnFailure, ServerConfig
from journal.settings.values import ConfigurationError
from journal.stop_signals import STOPS_AND_RELOAD, all_signals
from journal.telemetry.exposure import ExposureLog
from journal.telemetry.log import configure_log
from shards import compiled
from shards.errors import NotOwnerError, StorageFailedError, afresh

_FOR_OTHERS = 0o077

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


async def run_server(
    config: ServerConfig,
    path: str,
    read_again: Callable[[], ServerConfig] | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a data directory until SIGTERM or SIGINT, or until its storage fails.

    It reports its addresses once it accepts connections. A stop during the start takes effect between two of its steps:
    the data directory is then as after a crash, and the next start recovers it.

    Args:
        config: The settings.
        path: The data directory.
        read_again: Reads the settings again, at SIGHUP; without it they stay, and only the files they name are read.
        task_status: Gets the addresses; none if the server was stopped before it was ready.

    Raises:
        ConfigurationError: A file that the settings name cannot be used.
        DataDirectoryError: The directory is in use or cannot be used.
        CorruptionError: Acknowledged data is damaged, and it is not known which shard it belongs to.
        StorageFailedError: The storage failed, and ``storage.on_failure`` is "exit".
        OSError: An address cannot be bound.
    """
    log_limit = configure_log(config.log)
    guard = Security(config)
    exposure = ExposureLog(log, exposure_of(config, guard.access.known))
    sockets = bind(config.listen.addresses(), main="tcp")
    signals = _Signals(config, read_again or (lambda: config), guard, exposure)
    interpreter = prepare_interpreter()
    # RocksDB creates its files as the umask allows.
    umask = os.umask(_FOR_OTHERS)
    os.umask(umask | _FOR_OTHERS)
    try:
        async with trio.open_nursery() as nursery:
            # Signals and health requests are handled from before the start until after the last checkpoint, which a
            # second signal must not interrupt.
            await nursery.start(signals.take)
            nursery.start_soon(log_limit.keep_telling)
            told = _ToldOnce(task_status)
            failure: StorageFailedError | None = None
            with signals.begin_start():
                async with joined(config, path, sockets) as membership:
                    serving = _Serving(config, path, sockets, guard, signals, membership)
                    nursery.start_soon(serving.answer_over_http)
                    if membership is not None:
                        nursery.start_soon(membership.log_troubles)
                        nursery.start_soon(membership.keep_asking)
                    nursery.start_soon(collect_rarely, lambda: serving.statistics.connections_total)
                    failure = await serving.run(nursery, told)
            log.info("stopped during the start" if signals.start.cancelled_caught else "stopped")
            told.started([])
            nursery.cancel_scope.cancel()
        if config.storage.on_failure is OnFailure.EXIT and failure is not None:
            raise afresh(failure)
    finally:
        os.umask(umask)
        interpreter.restore()
        log_limit.tell(also_unfinished=True)
        for sock in sockets.values():
            sock.close()
        guard.refused_logins.tell(also_unfinished=True)
        guard.refused_acts.tell(also_unfinished=True)
        guard.repeated_acts.tell(also_unfinished=True)
        guard.audit.close()


class _ToldOnce:
    """Reports the addresses of the server when it serves for the first time, and none if it never does."""

    def __init__(self, task_status: trio.TaskStatus[list[str]]) -> None:
        self._task_status: trio.TaskStatus[list[str]] | None = task_status

    def started(self, addresses: list[str]) -> None:
        """Report, unless it was done before."""
        if self._task_status is not None:
            self._task_status.started(addresses)
            self._task_status = None


class _Serving:
    """Opens the engine and serves it: once on its own, and again and again as one of the servers of a store.

    Args:
        config: The settings.
        path: The data directory.
        sockets: The listening sockets by name.
        guard: Decides which clients are accepted.
        signals: The signals of the process.
        membership: This server as one of a store; None for a server on its own.

    Attributes:
        statistics: Counts what happens.
    """

    def __init__(
        self,
        config: ServerConfig,
        path: str,
        sockets: dict[str, socket.socket],
        guard: Security,
        signals: _Signals,
        membership: Membership | None,
    ) -> None:
        self._config = config
        self._path = path
        self._sockets = sockets
        self._guard = guard
        self._signals = signals
        self._membership = membership
        self._identity: Identity = no_identity if membership is None else membership.answer
        self._front = Front(signals.stopping.is_set, self._identity, membership)
        self._addresses = [f"{name}={listens_at(sock)}" for name, sock in sockets.items()]
        self.statistics = ServerStatistics()
        self._nursery: trio.Nursery
        self._reading: _Reading | None = None

    async def answer_over_http(self) -> None:
        """Answer HTTP requests until cancelled, also while the engine is being opened."""
        if "http" in self._sockets:
            encryption = Encryption(self._guard.current_tls, self._config.limits.hello_timeout_s, self.statistics)
            await serve_http(self._front, self._sockets["http"], trio.Event(), encryption, self._guard.http_senders)

    async def run(self, nursery: trio.Nursery, told: _ToldOnce) -> StorageFailedError | None:
        """Serve until the process is to stop, or the storage fails, for the reason that is returned."""
        shared = None if self._membership is None else self._membership.log
        self._nursery = nursery
        while True:
            failure: StorageFailedError | None = None
            with self._signals.begin_start():
                if self._membership is not None:
                    self._membership.begin_answers(nursery, self._sockets)
                async with open_engine(self._path, self._config, log=shared, readers=self) as engine:
                    if self._membership is not None:
                        self._membership.end_answers()
                        nursery.start_soon(self._membership.inform_former_owner)
                    if self._reading is None:
                        await self._serve(engine, told)
                    else:
                        await self._serve_on(self._reading, told)
                failure = engine.failure
            self._signals.ended()
            if shared is None or not isinstance(failure, NotOwnerError):
                return failure
            if self._signals.stopping.is_set():
                return None
            self._front.start_again()
            await shared.lose()

    # Reads while another server owns the store (see `journal.engine.opening.FollowerReaders`)

    def begin(self, engine: Engine) -> None:
        """Serve clients that read from this follower; others are told who owns the store."""
        assert self._membership is not None
        server = Server(engine, trio.Event(), self._guard, self.statistics, self._identity)
        self._reading = _Reading(server)
        self._signals.serve_reads(server)
        logins = self._guard.access.logins
        collector = FollowerCollector(engine, self.statistics, server.pushed_bytes, logins, self._membership)
        self._front.serve_reads(page_of(collector), server.observers())
        self._membership.end_answers("tcp")
        self._nursery.start_soon(self._reading.run, {"tcp": self._sockets["tcp"]})
        self._nursery.start_soon(self._answer_after, server)

    async def end(self) -> None:
        """Return when none of them is connected any more. From then on all clients are told who owns the store."""
        reading, self._reading = self._reading, None
        if reading is not None and self._membership is not None:
            await reading.end()
            self._front.start_again()
            self._signals.ended()
            self._membership.begin_answers(self._nursery, self._sockets)

    async def _answer_after(self, server: Server) -> None:
        """Answer clients with `NotOwnerError` as soon as a server accepts none any more, since it has lost the store.

        It has not ended then: a request to a log store that does not answer may be under way for long.
        """
        await server.accepts_no_more.wait()
        lost = isinstance(server.engine.failure, NotOwnerError) and not self._signals.stopping.is_set()
        if lost and self._membership is not None:
            self._membership.begin_answers(self._nursery, self._sockets)

    # Serving

    async def _serve(self, engine: Engine, told: _ToldOnce) -> None:
        server = Server(engine, trio.Event(), self._guard, self.statistics, self._identity)
        self._take_over(server)
        self._nursery.start_soon(self._answer_after, server)
        async with trio.open_nursery() as serving:
            others = {name: sock for name, sock in self._sockets.items() if name != "http"}
            await serving.start(server.run, others)
            await self._tell(server, told)

    async def _serve_on(self, reading: _Reading, told: _ToldOnce) -> None:
        """Go on with the server whose clients have read from this follower: it owns the store now."""
        self._reading = None
        server = reading.server
        try:
            await reading.started.wait()
            self._take_over(server)
            if not server.stopping.is_set():
                # Otherwise it has lost the store again already, or the process is to stop.
                server.serve_all({name: sock for name, sock in self._sockets.items() if name not in ("http", "tcp")})
            await self._tell(server, told)
            await reading.ended.wait()
        finally:
            with trio.CancelScope(shield=True):
                await reading.end()

    def _take_over(self, server: Server) -> None:
        _tell_recovery(server.engine.recovery)
        self._signals.serve(server)
        self._front.app = server.make_app(self._sockets)

    async def _tell(self, server: Server, told: _ToldOnce) -> None:
        tcp = reached_at(self._sockets["tcp"]) if "tcp" in self._sockets else ""
        await trio.to_thread.run_sync(server.engine.announce, tcp)
        server.addresses = self._addresses
        told.started(self._addresses)


class _Reading:
    """A server that began while another one owned the store.

    Args:
        server: The server.

    Attributes:
        server: The same.
        started: It accepts clients, or has ended.
        ended: It has ended.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.started = trio.Event()
        self.ended = trio.Event()

    async def run(self, sockets: dict[str, socket.socket]) -> None:
        """Serve until the server stops."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.server.run, sockets)
                self.started.set()
        finally:
            self.started.set()
            self.ended.set()

    async def end(self) -> None:
        """Stop the server in order."""
        self.server.stopping.set()
        await self.ended.wait()


def _tell_recovery(report: RecoveryReport) -> None:
    log.info(
        "recovered",
        entries=report.entries,
        truncated_bytes=report.truncated_bytes,
        hot_loops=compiled.DESCRIPTION,
    )
    for damage in report.damages:
        log.error("shard stopped", damage=damage)


class _Signals:
    """The signals of the process: stop, and reload the settings that may change while it runs.

    Attributes:
        stopping: Set when the process is to stop.
        start: Cancelling it ends the start. It is not cancelled once there is a server, which stops in order.
        server: The server, once the engine is open, or clients read from this follower.
    """

    def __init__(
        self, config: ServerConfig, read_again: Callable[[], ServerConfig], guard: Security, exposure: ExposureLog
    ) -> None:
        self.stopping = trio.Event()
        self.start = trio.CancelScope()
        self.server: Server | None = None
        self._is_starting = True
        self._config = config
        self._read_again = read_again
        self._guard = guard
        self._exposure = exposure

    def begin_start(self) -> trio.CancelScope:
        """The cancel scope of another start; it is cancelled already if the process is to stop."""
        self.start = trio.CancelScope()
        if self.stopping.is_set():
            self.start.cancel()
        return self.start

    def serve(self, server: Server) -> None:
        """From now on a stop ends this server in order."""
        self.server = server
        self._is_starting = False
        if self.stopping.is_set():
            server.stopping.set()

    def serve_reads(self, server: Server) -> None:
        """A server serves reads during the start. A stop still ends the start, and with it the server."""
        self.server = server

    def ended(self) -> None:
        """The server has ended."""
        self.server = None
        self._is_starting = True

    async def take(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Handle signals until cancelled, including those that came before."""
        with all_signals(*STOPS_AND_RELOAD) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    await self._reload()
                else:
                    self._stop(signal.Signals(number))

    def _stop(self, number: signal.Signals) -> None:
        log.info("already stopping" if self.stopping.is_set() else "stopping", signal=number.name)
        self.stopping.set()
        if self.server is None or self._is_starting:
            self.start.cancel()
        else:
            self.server.stopping.set()

    async def _reload(self) -> None:
        """Reload the settings; if any of them is wrong, none is changed."""
        try:
            config = self._read_again()
            check_reload(self._config, config)
            readable = await trio.to_thread.run_sync(read, config)
            self._guard.audit.reopen()
        except ConfigurationError as error:
            log.error("not reloaded, everything stays as it was", reason=str(error))  # noqa: TRY400 it is not a bug
            self._guard.audit.write(AuditEntry(principal="", peer="", act="reload", target="", outcome=error.code))
            return
        if self.server is None:
            self._guard.take_over(readable)
        else:
            self.server.take_over(readable)
        known = readable.known
        log.info(
            "reloaded",
            users=0 if known.users is None else len(known.users),
            tokens=0 if known.tokens is None else len(known.tokens),
            rules=len(config.access.rules),
            certificates=readable.tls is not None,
        )
        self._exposure.reloaded(exposure_of(in_use(self._config, config), known))
        self._guard.audit.write(AuditEntry(principal="", peer="", act="reload", target="", outcome="ok"))
        if changed := unread_changes(self._config, config):
            log.warning("changed settings that take effect only after a restart", sections=changed)
