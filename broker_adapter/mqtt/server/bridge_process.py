"""Bridges in a process of their own: it has no clients, and delivers queued messages to the sinks."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection

import attrs
import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.errors import StorageFailedError, afresh
from broker_adapter.mqtt.broker.composition import BridgeSpecs, broker_id_of
from broker_adapter.mqtt.config import BrokerConfig
from broker_adapter.mqtt.publish.store_changes import until_reached
from broker_adapter.mqtt.rules.agreement import agree_on_bridges
from broker_adapter.mqtt.rules.follower import RulesFollower
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.rules.stored import StoredRules
from broker_adapter.mqtt.server.gc_tuning import prepare_interpreter
from broker_adapter.mqtt.telemetry.store_watch import StoreWatch, log_waiting
from broker_adapter.opening import open_adapter
from journal.settings.values import ConfigurationError
from journal.stop_signals import STOPS, all_signals
from journal.telemetry.log import configure_log
from shards import compiled

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
        names: Names of the bridges; empty for all.
        task_status: Gets their names; an empty list if it was stopped before the store was reached.

    Raises:
        ConfigurationError: There is no such bridge, or its sink cannot be used.
        StorageFailedError: The store is in this process and has failed, or it was restored from a backup: what the
            drivers have in memory may belong to the history before the restore.
        StorageError: The store refuses this program.
    """
    failures: list[StorageFailedError] = []
    log_limit = configure_log(config.log, ("journal", "broker_adapter"))
    prepare_interpreter()
    stopping, reached = trio.Event(), trio.Event()
    async with background_tasks() as tasks:
        tasks.start_soon(log_limit.keep_telling)
        with trio.CancelScope() as reaching:
            await tasks.start(_stop_at_signal, stopping, reached, reaching)
            waiting = trio.CancelScope()
            tasks.start_soon(log_waiting, config.broker.store, waiting)
            broker_id = broker_id_of(config)
            async with open_adapter(
                config.broker.store,
                name=f"bridge-{broker_id}",
                ends_at_restore=True,
                first_within_s=math.inf,
            ) as adapter:
                reached.set()
                waiting.cancel()
                rules = _Rules(adapter, config, names)
                bridges = Bridges(adapter, await rules.agree(), broker_id)
                # Ended before the connection, so that they give their leases back and other drivers need not wait.
                async with background_tasks() as running:
                    await running.start(_run, bridges)
                    await running.start(rules.follow, bridges)
                    log.info("started", hot_loops=compiled.DESCRIPTION)
                    task_status.started(list(bridges.states()))
                    running.start_soon(StoreWatch(adapter).run)
                    running.start_soon(_stop_after_failure, adapter, failures, stopping)
                    await stopping.wait()
        if not reached.is_set():
            task_status.started([])
    log.info("stopped")
    log_limit.tell(also_unfinished=True)
    if failures:
        raise afresh(failures[0])


class _Rules:
    """The bridges that this process drives, by the rules of the store."""

    def __init__(self, adapter: StorageAdapter, config: BrokerConfig, names: Collection[str]) -> None:
        self._adapter = adapter
        self._config = config
        self._names = names
        self._specs = BridgeSpecs()
        self._stored: StoredRules | None = None

    async def agree(self) -> list[BridgeSpec]:
        """The bridges to start with; see `agree_on_bridges`."""
        agreed = await until_reached(
            lambda: agree_on_bridges(
                self._adapter, RuleSet.of(self._config), self._names, self._config.rules.on_difference
            )
        )
        if agreed.differences:
            log.warning(
                "these settings differ from the rules of the store, which apply", differences=agreed.differences
            )
        require_bridges([table.name for table in agreed.rules.bridge], self._names)
        self._stored = agreed.stored
        return self._chosen(agreed.rules)

    async def follow(self, bridges: Bridges, *, task_status: trio.TaskStatus[None]) -> None:
        """Apply each change of the rules until cancelled."""

        async def change(stored: StoredRules) -> None:
            await bridges.change(self._chosen(stored.rules))
            log.info("rules changed", version=stored.version, by=stored.applied_by, bridges=list(bridges.states()))

        await RulesFollower(self._adapter, self._stored, change).run(task_status=task_status)

    def _chosen(self, rules: RuleSet) -> list[BridgeSpec]:
        tables = tuple(table for table in rules.bridge if not self._names or table.name in self._names)
        return self._specs.of_rules(attrs.evolve(rules, bridge=tables))


def require_bridges(known: Collection[str], names: Collection[str]) -> None:
    """Check the names of the bridges to drive.

    Raises:
        ConfigurationError: A bridge does not exist, or there are none.
    """
    if not known:
        raise ConfigurationError(
            "there are no bridges, neither in the store nor in the configuration; add a [[bridge]] table; "
            "`journal-broker config --default` shows one"
        )
    for name in names:
        if name not in known:
            raise ConfigurationError(f"there is no bridge {name!r}; there are {', '.join(known)}")


async def _run(bridges: Bridges, *, task_status: trio.TaskStatus[None]) -> None:
    await bridges.run(writes=False, task_status=task_status)


async def _stop_after_failure(
    adapter: StorageAdapter, failures: list[StorageFailedError], stopping: trio.Event
) -> None:
    failures.append(await adapter.wait_failed())
    log.error("stopping, as the store failed, was restored or is another one", reason=str(failures[0]))
    stopping.set()


async def _stop_at_signal(
    stopping: trio.Event, reached: trio.Event, reaching: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    with all_signals(*STOPS) as signals:
        task_status.started()
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name)
            stopping.set()
            if not reached.is_set():
                reaching.cancel()
