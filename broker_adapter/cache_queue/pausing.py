"""Pausing a queue, and waiting until its driver sends nothing to the sink any more.

The pause is stored in the queue's definition, which a driver reads once a second, and before it sends anything after it
took the lease. The driver answers with its status. Versions in the store are lsns of one log, so a status "paused" with
a higher version than that of the pause is an answer to it, whatever the clocks of the machines say.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.lease import LeaseSettings
from broker_adapter.cache_queue.queue import definition_of, store_pause
from broker_adapter.cache_queue.stored import Lease, Status
from broker_adapter.lease_watch import LeaseWatch
from broker_adapter.state_forms import decode
from shards.model import StateValue

PAUSED: Final = "paused"
"""State of a driver that sends nothing, because the queue is paused."""

_DRAINING: Final = "draining"
_LOOK_INTERVAL_S: Final = 0.1


class PauseOutcome(enum.StrEnum):
    """Why a wait for the driver of a paused queue is over. The values are printed for scripts."""

    ANSWERED = "driver paused"
    """The driver has reported that it sends nothing any more."""

    NOT_DRIVEN = "not driven"
    """No process has the lease. One that takes it later finds the queue paused."""

    LEASE_EXPIRED = "lease expired"
    """The driver has not renewed its lease for a whole lease period: it is dead, or has stopped by itself."""

    DRAINED_ONCE = "drained once"
    """A process such as `journal-spark drain` takes the records to another target; the bridge waits for it."""

    RESUMED = "resumed"
    """The queue was resumed, or deleted and created again, before the driver had answered."""


@attrs.frozen(slots=True)
class Pause:
    """How a wait for the driver of a paused queue ended.

    Attributes:
        outcome: Why it ended. With any but ``RESUMED`` no new write to the sink begins until the queue is resumed.
        driver: The process that has the lease, or had it last; empty if there is none.
    """

    outcome: PauseOutcome
    driver: str = ""


async def pause_queue(
    adapter: StorageAdapter,
    name: str,
    *,
    lease: LeaseSettings | None = None,
    on_wait: Callable[[str], None] = lambda _driver: None,
) -> Pause:
    """Pause a queue, and return when its driver sends nothing to the sink any more.

    The pause is durable before the wait begins, and holds if the wait is cancelled. What was being sent when the driver
    noticed the pause is finished first: that takes as long as the sink needs for it.

    Args:
        lease: The lease settings of the queue's drivers: one that has not renewed its lease for this long is dead.
        on_wait: Called with the name of the driver at each look at which it has not answered yet.

    Raises:
        QueueNotFoundError: There is no queue of that name, or it was deleted meanwhile.
        StorageError: The store does not answer.
    """
    settings = lease or LeaseSettings()
    version = await store_pause(adapter, name)
    watch = LeaseWatch(settings.lease_s, 2 * settings.renew_interval_s)
    while True:
        began_s = trio.current_time()
        if not (await definition_of(adapter, name)).is_paused:
            return Pause(PauseOutcome.RESUMED)
        found = await adapter.get_state(names.lease_key(name))
        held = None if found is None else decode(Lease, found.key, found.value)
        if found is None or held is None or not held.holder:
            return Pause(PauseOutcome.NOT_DRIVEN)
        told = await adapter.get_state(names.status_key(name))
        if (outcome := _outcome(told, held.holder, version)) is not None:
            return Pause(outcome, held.holder)
        _, run_out = watch.look(began_s, trio.current_time(), {held.claim: found.version})
        if run_out:
            return Pause(PauseOutcome.LEASE_EXPIRED, held.holder)
        on_wait(held.holder)
        await trio.sleep(_LOOK_INTERVAL_S)


def _outcome(told: StateValue | None, holder: str, version: int) -> PauseOutcome | None:
    """What the status of a driver says about a pause; None if nothing yet.

    Args:
        holder: The process that has the lease.
        version: That of the pause.
    """
    status = None if told is None else decode(Status, told.key, told.value)
    if told is None or status is None or status.holder != holder:
        return None
    if status.state == PAUSED and told.version > version:
        return PauseOutcome.ANSWERED
    return PauseOutcome.DRAINED_ONCE if status.state == _DRAINING else None
