"""Bridges in a process of their own: it takes no messages from clients, it brings what waits to the sinks."""

from __future__ import annotations

import signal
from collections.abc import Collection

import attrs
import structlog
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.mqtt.assembly import bridges_of, broker_id_of
from broker_adapter.mqtt.config import BrokerConfig
from broker_adapter.mqtt.interpreter import prepare_interpreter
from journal.log import configure_log
from journal.settings import ConfigurationError
from shards.errors import StorageFailedError, afresh

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


async def run_bridges(
    config: BrokerConfig,
    names: Collection[str],
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run bridges until SIGTERM or SIGINT, or until the store was restored; report their names once it is reached.

    Args:
        config: The settings of the brokers.
        names: Which bridges; none for all.
        task_status: Gets their names; none if it was told to stop before the store was reached.

    Raises:
        ConfigurationError: There is no such bridge, or its sink cannot be used.
        StorageFailedError: The store lies in this process and has failed, or was restored from a backup: what the
            drivers hold of their queues may be of a history that is lost.
        StorageError: The store refuses this program.
    """
    failures: list[StorageFailedError] = []
    log_limit = configure_log(config.log, ("journal", "broker_adapter"))
    prepare_interpreter()
    specs = chosen(bridges_of(config), names)
    stopping, reached = trio.Event(), trio.Event()
    async with background_tasks() as tasks:
        tasks.start_soon(log_limit.keep_telling)
        with trio.CancelScope() as reaching:
            await tasks.start(_stop_at_signal, stopping, reached, reaching)
            async with open_adapter(config.broker.store, ends_at_restore=True) as adapter:
                reached.set()
                # Ended before the connection, so that they give their leases back and others need not wait for them.
                async with background_tasks() as running:
                    await running.start(_run, Bridges(adapter, specs, broker_id_of(config)))
                    task_status.started([spec.name for spec in specs])
                    running.start_soon(_stop_after_failure, adapter, failures, stopping)
                    await stopping.wait()
        if not reached.is_set():
            task_status.started([])
    log.info("stopped")
    log_limit.tell(also_unfinished=True)
    if failures:
        raise afresh(failures[0])


def chosen(specs: Collection[BridgeSpec], names: Collection[str]) -> list[BridgeSpec]:
    """The bridges of these names, all if there are none, to be driven here whatever the settings say of brokers.

    Raises:
        ConfigurationError: There is no such bridge.
    """
    known = {spec.name: spec for spec in specs}
    if not known:
        raise ConfigurationError("the configuration has no bridges; add a [[bridge]] table, see conf/broker.toml")
    for name in names:
        if name not in known:
            raise ConfigurationError(f"there is no bridge {name!r}; the configuration has {', '.join(known)}")
    return [attrs.evolve(known[name], drive=True) for name in (names or known)]


async def _run(bridges: Bridges, *, task_status: trio.TaskStatus[None]) -> None:
    await bridges.run(writes=False, task_status=task_status)


async def _stop_after_failure(
    adapter: StorageAdapter, failures: list[StorageFailedError], stopping: trio.Event
) -> None:
    failures.append(await adapter.wait_failed())
    log.error("stopping, as the store failed or was restored", reason=str(failures[0]))
    stopping.set()


async def _stop_at_signal(
    stopping: trio.Event, reached: trio.Event, reaching: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name)
            stopping.set()
            if not reached.is_set():
                reaching.cancel()
