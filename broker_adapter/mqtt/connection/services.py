"""The parts of a broker that every connection uses, and the nursery of its tasks."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.permissions import Access
from broker_adapter.mqtt.connection.connect_budget import ConnectBudget
from broker_adapter.mqtt.connection.handshake import Handshake
from broker_adapter.mqtt.connection.pause_detector import PauseDetector
from broker_adapter.mqtt.delivery import Distributor
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.statistics import BrokerStatistics
from broker_adapter.mqtt.publish.store_changes import Publisher
from broker_adapter.mqtt.session import Retained, Sessions
from shards.seams.clock import Clock


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
    limits: Limits
    clock: Clock
    statistics: BrokerStatistics
    pause_detector: PauseDetector
    connect_budget: ConnectBudget
    system_messages: Mapping[str, Message]
    tasks: trio.Nursery
