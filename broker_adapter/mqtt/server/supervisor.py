"""A broker as several processes: the supervisor starts them, starts those again that end, and stops all in order.

The processes listen on the same addresses, and the kernel distributes connections between them. Towards the store each
is a broker of its own.
"""

from __future__ import annotations

import signal
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog
import trio

from broker_adapter.background_tasks import background_tasks
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt.admin.administration import Administration
from broker_adapter.mqtt.admin.pages import administration_pages
from broker_adapter.mqtt.broker.composition import access_control_of, audit_of, broker_id_of, tls_of
from broker_adapter.mqtt.config import BrokerConfig
from broker_adapter.mqtt.server.process import HTTP, MAIN, broker_version, in_use
from broker_adapter.mqtt.server.process_settings import ProcessSettings
from broker_adapter.mqtt.server.supervisor_pages import SupervisorPages
from broker_adapter.mqtt.server.worker_lines import Failed
from broker_adapter.mqtt.server.worker_process import Ending, WorkerProcess, WorkerUnansweredError
from broker_adapter.mqtt.telemetry.health import NOT_OPEN
from broker_adapter.mqtt.telemetry.merged_metrics import MergedMetrics
from journal.net.listening import bind, listens_at, reserve
from journal.settings.access import is_loopback
from journal.settings.values import ConfigurationError
from journal.stop_signals import STOPS_AND_RELOAD, all_signals
from journal.telemetry.http_pages import HttpPages
from journal.telemetry.log import configure_log
from shards.back_off import BackOff

_BACK_OFF: Final = BackOff(0.1, 10.0)
_STEADY_S: Final = 60.0
"""After a process has run for so long, the next restart is not delayed by earlier ones."""

_STOP_S: Final = 20.0
_KILLED_STATUS: Final = 1
_NOT_STARTED_STATUS: Final = 1

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class ProcessFailedError(Exception):
    """A process of the broker cannot start, or had to be killed at the end.

    Attributes:
        status: The exit status for the broker.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def run_processes(
    config: BrokerConfig,
    read_again: Callable[[], BrokerConfig],
    *,
    command: Sequence[str],
    passing: Collection[int],
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker as `broker.processes` processes until SIGTERM or SIGINT.

    It reports the addresses, as ``name=HOST:PORT``, once all processes accept clients. A process that ends
    afterwards is started again.

    Args:
        config: The settings.
        read_again: Returns the settings, read again at SIGHUP.
        command: Starts a process, which runs `worker.run_worker`.
        passing: Exit statuses after which a process is started again although none was ready before.
        task_status: Gets the addresses; an empty list if it was stopped before.

    Raises:
        ConfigurationError: A file that the settings name cannot be used.
        OSError: An address cannot be listened on.
        ProcessFailedError: A process cannot start, or did not stop.
    """
    log_limit = configure_log(config.log, ("journal", "broker_adapter"))
    supervisor = _Supervisor(config, read_again, command, passing)
    async with background_tasks() as telling:
        telling.start_soon(log_limit.keep_telling)
        try:
            await supervisor.run(task_status)
        finally:
            log_limit.tell(also_unfinished=True)
            supervisor.audit.close()


class _Supervisor:
    def __init__(
        self,
        config: BrokerConfig,
        read_again: Callable[[], BrokerConfig],
        command: Sequence[str],
        passing: Collection[int],
    ) -> None:
        # Files that cannot be used are reported once, before any process is started.
        self._access: AccessControl = access_control_of(config)
        self.audit: BrokerAudit = audit_of(config, self._access)
        self._tls: ssl.SSLContext | None = tls_of(config)
        self._config = config
        self._read_again = read_again
        self._command = command
        self._passing = passing
        self._settings: ProcessSettings
        self._merged = MergedMetrics()
        self._stopping = trio.Event()
        self._ready_numbers: set[int] = set()
        self._failure: Failed | None = None
        self.workers: dict[int, WorkerProcess] = {}
        self.restart_counts: Counter[int] = Counter()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def run(self, task_status: trio.TaskStatus[list[str]]) -> None:
        async with trio.open_nursery() as nursery:
            # Signals are handled from before the start until after the end, which a second one must not interrupt.
            await nursery.start(self._take_signals)
            nursery.start_soon(self.audit.keep_telling)
            await self._serve(task_status)
            nursery.cancel_scope.cancel()
        log.info("stopped")
        if self._failure is not None:
            raise ProcessFailedError(self._failure.message, self._failure.status)

    async def _serve(self, task_status: trio.TaskStatus[list[str]]) -> None:
        listen = self._config.listen
        addresses = listen.addresses()
        sockets = reserve({name: address for name, address in addresses.items() if name != HTTP}, main=MAIN)
        try:
            bound = {name: listens_at(sock) for name, sock in sockets.items()}
            self._settings = ProcessSettings(broker_id_of(self._config), listen, bound)
            sockets |= bind({HTTP: addresses[HTTP]}, main=MAIN)
            announced = [f"{name}={listens_at(sock)}" for name, sock in sockets.items()]
            async with trio.open_nursery() as serving:
                async with trio.open_nursery() as keeping:
                    for number in range(1, self._config.broker.processes + 1):
                        self.workers[number] = self._worker(number)
                        keeping.start_soon(self._keep, number, task_status, announced)
                    if HTTP in sockets:
                        serving.start_soon(self._http().serve, sockets[HTTP])
                serving.cancel_scope.cancel()
        finally:
            for sock in sockets.values():
                sock.close()
        if not self._is_ready():
            task_status.started([])

    def _is_ready(self) -> bool:
        """Whether all processes have been ready."""
        return len(self._ready_numbers) == self._config.broker.processes

    # Processes

    def _worker(self, number: int) -> WorkerProcess:
        return WorkerProcess(number, self._command, self._settings.of(self._config, number))

    async def _keep(self, number: int, task_status: trio.TaskStatus[list[str]], announced: list[str]) -> None:
        """Run the process of one number, and start it again, until all stop."""
        attempt = 0
        while not self._stopping.is_set():
            worker = self.workers[number] = self._worker(number)
            began_s = trio.current_time()
            async with trio.open_nursery() as attending:
                attending.start_soon(self._note_ready, worker, task_status, announced)
                attending.start_soon(self._stop_in_time, worker)
                ending = await self._ending(worker)
                attending.cancel_scope.cancel()
            self._merged.note_ended(number)
            if self._stopping.is_set():
                return
            failure = ending.failure
            if failure is not None and not self._is_ready() and failure.status not in self._passing:
                # It is wrong for all, and starting it again would not help.
                self._failure = failure
                self._stopping.set()
                return
            attempt = 0 if trio.current_time() - began_s >= _STEADY_S else attempt + 1
            delay_s = _BACK_OFF.delay_s(attempt)
            self.restart_counts[number] += 1
            log.error(
                "a process of the broker has ended, and is started again",
                process=number,
                pid=worker.pid,
                ended=ending.words,
                reason="" if failure is None else failure.message,
                after_s=round(delay_s, 1),
            )
            with trio.move_on_after(delay_s):
                await self._stopping.wait()

    async def _ending(self, worker: WorkerProcess) -> Ending:
        try:
            return await worker.run()
        except OSError as error:
            words = f"it could not be started: {error}"
            return Ending(words, Failed(f"a process of the broker: {words}", _NOT_STARTED_STATUS))

    async def _note_ready(
        self, worker: WorkerProcess, task_status: trio.TaskStatus[list[str]], announced: list[str]
    ) -> None:
        await worker.ready.wait()
        if self._is_ready():
            log.info("a process of the broker is ready again", process=worker.number, pid=worker.pid)
            return
        self._ready_numbers.add(worker.number)
        if self._is_ready():
            task_status.started(announced)

    async def _stop_in_time(self, worker: WorkerProcess) -> None:
        await self._stopping.wait()
        worker.stop()
        await trio.sleep(_STOP_S)
        message = f"process {worker.number} did not stop within {_STOP_S:.0f} s, and was killed"
        log.error(message, pid=worker.pid)
        self._failure = self._failure or Failed(message, _KILLED_STATUS)
        worker.kill()

    # Pages

    def _http(self) -> HttpPages:
        # The functions of these pages are not called here, but in the process that a request is passed to.
        administration = Administration(self._access, lambda: NOT_OPEN, self.audit)
        pages = administration_pages(administration, self._config.access.max_bans, broker_version())
        is_for_all = is_loopback(self._config.listen.http)
        return HttpPages(
            SupervisorPages(self, pages, self._merged).pages, tls=lambda: None if is_for_all else self._tls
        )

    # Signals

    async def _take_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        with all_signals(*STOPS_AND_RELOAD) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    await self._reload()
                    continue
                log.info("already stopping" if self.is_stopping else "stopping", signal=signal.Signals(number).name)
                self._stopping.set()

    async def _reload(self) -> None:
        """Read the settings and their files, and pass them to all processes; if anything is wrong, to none."""
        if self._stopping.is_set():
            return
        try:
            config = self._read_again()
            await trio.to_thread.run_sync(access_control_of, config)
            tls = await trio.to_thread.run_sync(tls_of, config)
            self.audit.reopen()
        except ConfigurationError as error:
            log.error("not reloaded, everything stays as it was", reason=str(error))  # noqa: TRY400 it is no bug of ours
            self.audit.record("reload", outcome=error.code)
            return
        if self._stopping.is_set():
            return
        self._tls = tls
        # A process that is started later has what may change while a broker runs, and for the rest what others have.
        self._config = in_use(self._config, config)
        for worker in self.workers.values():
            if not worker.has_ended:
                try:
                    worker.reload(self._settings.of(config, worker.number))
                except WorkerUnansweredError:
                    log.error(  # noqa: TRY400 it is no bug of ours
                        "a process takes no new settings, and is killed", process=worker.number, pid=worker.pid
                    )
                    worker.kill()
