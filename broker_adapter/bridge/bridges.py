"""All bridges of one process: its way into their queues, and its part in driving them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks, single_error
from broker_adapter.bridge.driver import BridgeDriver
from broker_adapter.bridge.intake import Intake
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import LeaseSettings, QueueWriter
from shards.clock import Clock
from shards.errors import StorageError

_TRIED_AGAIN_S: Final = 30.0

_log = logging.getLogger(__name__)


class Bridges:
    """The bridges of one process.

    Args:
        adapter: The store.
        specs: The bridges.
        name: Names this process among those of the store.

    Attributes:
        intake: Where to put messages; from when `run` has started.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        specs: Sequence[BridgeSpec],
        name: str,
        *,
        lease: LeaseSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._writers = [
            (spec, QueueWriter(adapter, spec.name, spec.queue, writer=name, clock=clock)) for spec in specs
        ]
        self._drivers = [
            (spec.name, BridgeDriver(adapter, spec, name, lease=lease, clock=clock)) for spec in specs if spec.drive
        ]
        self.intake = Intake((spec.topics, writer) for spec, writer in self._writers)

    def doing(self) -> dict[str, str]:
        """What this process is doing for each bridge that it may drive, by the bridge's name."""
        return {name: driver.doing for name, driver in self._drivers}

    async def run(self, *, writes: bool = True, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. It has started when all queues are there.

        Args:
            writes: Whether messages are put in by this process.

        Raises:
            StorageError: The store refuses a queue.
        """
        async with background_tasks() as tasks:
            if writes:
                for _, writer in self._writers:
                    await tasks.start(writer.run)
            for name, driver in self._drivers:
                tasks.start_soon(_drive, name, driver)
            task_status.started()
            await trio.sleep_forever()


async def _drive(name: str, driver: BridgeDriver) -> None:
    """Drive a bridge; one that cannot be driven must not end the others, nor the broker."""
    while True:
        # With `except*`, because an error may come in a group with the cancellation of this task.
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
