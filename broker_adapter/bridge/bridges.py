"""All bridges of one process: writers of their queues and drivers of their sinks; they can change while it runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks, single_error
from broker_adapter.bridge.driver import BridgeDriver
from broker_adapter.bridge.queue_routing import QueueRouting
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import LeaseSettings, QueueWriter
from broker_adapter.errors import StorageError
from shards.seams.clock import Clock

_TRIED_AGAIN_S: Final = 30.0

_log = logging.getLogger(__name__)


class Bridges:
    """The bridges of one process.

    Args:
        adapter: The store.
        specs: The bridges.
        name: Name of this process, unique in the store.

    Attributes:
        queue_routing: Where to put messages; valid once `run` has started.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        specs: Iterable[BridgeSpec],
        name: str,
        *,
        lease: LeaseSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._adapter = adapter
        self._name = name
        self._lease = lease
        self._clock = clock
        self._specs = {spec.name: spec for spec in specs}
        self._writers: dict[str, _Writing] = {}
        self._drivers: dict[str, _Driving] = {}
        self._tasks: trio.Nursery | None = None
        self._writes = True
        self.queue_routing = QueueRouting()

    def states(self) -> dict[str, str]:
        """The states of the bridges that this process may drive (`driver.DRIVER_STATES`), by the bridge's name."""
        return {name: running.driver.state for name, running in self._drivers.items()}

    async def run(self, *, writes: bool = True, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; `task_status` is notified when all queues exist.

        Args:
            writes: Whether this process puts messages into the queues.

        Raises:
            StorageError: The store refuses a queue.
        """
        async with background_tasks() as tasks:
            self._tasks, self._writes = tasks, writes
            await self.change(self._specs.values())
            task_status.started()
            await trio.sleep_forever()

    async def change(self, specs: Iterable[BridgeSpec]) -> None:
        """Replace the bridges; one whose spec is the same object is not interrupted.

        Returns when messages go into the queues of all these bridges, and no longer into others. The records in the
        queue of a removed bridge stay there. A driver whose spec changed is stopped as at the end of the process; the
        new one continues with the unconfirmed records.

        REQUIRES: `run` has been called, and no other change is in progress.

        Raises:
            StorageError: The store refuses a queue; messages still go into the queues of the former bridges.
        """
        wanted = {spec.name: spec for spec in specs}
        if self._writes:
            for name, spec in wanted.items():
                await self._write(name, spec)
            self.queue_routing.replace((spec.topics, self._writers[name].writer) for name, spec in wanted.items())
        for name in self._writers.keys() - wanted.keys():
            await self._writers.pop(name).end()
        for name, driving in list(self._drivers.items()):
            if wanted.get(name) is not driving.spec:
                del self._drivers[name]
                await driving.end()
        for name, spec in wanted.items():
            if spec.drive and name not in self._drivers:
                self._drive(spec)
        self._specs = wanted

    async def _write(self, name: str, spec: BridgeSpec) -> None:
        writing = self._writers.get(name)
        if writing is None:
            writer = QueueWriter(self._adapter, name, spec.queue, writer=self._name, clock=self._clock)
            writing = _Writing(writer)
            await self._started.start(writing.task.run, writer.run)
            self._writers[name] = writing
        elif spec.queue != self._specs[name].queue:
            await writing.writer.configure(spec.queue)

    def _drive(self, spec: BridgeSpec) -> None:
        driver = BridgeDriver(self._adapter, spec, self._name, lease=self._lease, clock=self._clock)
        driving = self._drivers[spec.name] = _Driving(spec, driver)
        self._started.start_soon(driving.task.run, partial(_drive, spec.name, driver))

    @property
    def _started(self) -> trio.Nursery:
        assert self._tasks is not None, "run has not been called"
        return self._tasks


class _Task:
    """A task that can be cancelled before the nursery in which it runs."""

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._is_over = trio.Event()

    async def run(
        self, call: Callable[..., Awaitable[None]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            with self._scope:
                await call(task_status=task_status)
        finally:
            self._is_over.set()

    async def end(self) -> None:
        self._scope.cancel()
        await self._is_over.wait()


@attrs.frozen
class _Writing:
    """This process's writer of one queue."""

    writer: QueueWriter
    task: _Task = attrs.Factory(_Task)

    async def end(self) -> None:
        await self.task.end()
        await self.writer.store_counts()


@attrs.frozen
class _Driving:
    """This process as a candidate for driving one bridge."""

    spec: BridgeSpec
    driver: BridgeDriver
    task: _Task = attrs.Factory(_Task)

    async def end(self) -> None:
        await self.task.end()


async def _drive(
    name: str, driver: BridgeDriver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Drive a bridge; an error of one bridge must not end the others, nor the broker."""
    task_status.started()
    while True:
        # `except*`, because an error may be in a group together with the cancellation of this task.
        try:
            await driver.run()
        except* StorageError as errors:
            cause = single_error(errors)
            _log.error("bridge %s cannot be driven: %s; trying again in %.0f s", name, cause, _TRIED_AGAIN_S)
        except* Exception as errors:  # noqa: BLE001 - no error of one bridge may end the broker
            cause = single_error(errors)
            _log.error(
                "bridge %s cannot be driven: an error that no rule of bridges names; trying again in %.0f s",
                name,
                _TRIED_AGAIN_S,
                exc_info=cause,
            )
        await trio.sleep(_TRIED_AGAIN_S)
