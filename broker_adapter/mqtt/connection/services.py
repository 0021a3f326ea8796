"""What all connections of a broker share.

That is the parts of the broker, a bound on the memory of clients that are not accepted yet, and the detection of
pauses: the process or its machine was stopped, so bytes in its sockets may be old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.bans import Bans
from broker_adapter.mqtt.access.permissions import Access
from broker_adapter.mqtt.connection.handshake import Handshake
from broker_adapter.mqtt.delivery import Distributor
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.statistics import BrokerStatistics
from broker_adapter.mqtt.publish.store_changes import Publisher
from broker_adapter.mqtt.session import Retained, Sessions
from shards.seams.clock import Clock

FREE_BYTES: Final = 4096
"""So much does not count: all connections together can have it, and most CONNECTs are shorter."""


class ConnectBudget:
    """Bytes that clients sent which are not accepted yet, beyond `FREE_BYTES` of each.

    Args:
        limit_bytes: The most that they may be together.

    Attributes:
        used_bytes: What they are now.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes

    def replace(self, counted: int, held: int) -> int:
        """A connection that was counted with some bytes holds this many now.

        Returns:
            The bytes that it is counted with from now on; -1 if there is no room for them, and it counts no more.
        """
        self.used_bytes -= counted
        now = max(0, held - FREE_BYTES)
        if self.used_bytes + now > self._limit_bytes:
            return -1
        self.used_bytes += now
        return now


MIN_PAUSE_S: Final = 1.0
"""Shortest pause that counts. A broker that takes a session by force waits at least this long for the owner."""

_LOOK_S: Final = 0.25


class PauseDetector:
    """Detects pauses of the process by reading the clock at short intervals.

    Args:
        worked_s: Returns the processor time of this thread, in seconds. Time in which the thread worked is no pause: a
            thousand clients that connect at once may keep it busy as long.
    """

    def __init__(self, worked_s: Callable[[], float] = time.thread_time) -> None:
        self._worked_s = worked_s
        self._looked_at_s = trio.current_time()
        self._worked_before_s = worked_s()
        self._ended_at_s = float("-inf")

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._look()
            await trio.sleep(_LOOK_S)

    def has_ended_since(self, start_s: float) -> bool:
        """Whether a pause ended after this moment of trio's clock."""
        # The caller may run before the task of this class does.
        self._look()
        return self._ended_at_s > start_s

    def _look(self) -> None:
        now_s, worked_s = trio.current_time(), self._worked_s()
        still_s = now_s - self._looked_at_s - (worked_s - self._worked_before_s)
        if still_s >= _LOOK_S + MIN_PAUSE_S:
            self._ended_at_s = now_s
        self._looked_at_s, self._worked_before_s = now_s, worked_s


@attrs.frozen(slots=True)
class Services:
    """The parts of a broker that a connection is created with.

    Attributes:
        system_messages: The newest statistics of this broker, by topic.
        tasks: Nursery of the tasks of connections.
    """

    adapter: StorageAdapter
    sessions: Sessions
    distributor: Distributor
    publisher: Publisher
    retained: Retained
    handshake: Handshake
    access: Access
    audit: BrokerAudit
    bans: Bans
    limits: Limits
    clock: Clock
    statistics: BrokerStatistics
    pause_detector: PauseDetector
    connect_budget: ConnectBudget
    system_messages: Mapping[str, Message]
    tasks: trio.Nursery


ConnectionT_contra = TypeVar("ConnectionT_contra", contravariant=True)


class Owner(Protocol[ConnectionT_contra]):
    """The broker, which has many connections."""

    def admitted(self, connection: ConnectionT_contra) -> None:
        """The connection's client was accepted."""

    def has_messages(self, connection: ConnectionT_contra) -> None:
        """The connection's session has messages to send: call `Connection.pump`."""

    def ended(self, connection: ConnectionT_contra) -> None:
        """The connection has ended."""
