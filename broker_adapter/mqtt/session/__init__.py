"""Durable sessions: kept in the store, owned by one broker at a time, and taken over by compare-and-set."""

from broker_adapter.mqtt.session.errors import (
    BrokerReplacedError,
    ClientGoneError,
    SessionOfAnotherUserError,
    SessionTakenOverError,
    StoreUnavailableError,
)
from broker_adapter.mqtt.session.retained import Retained
from broker_adapter.mqtt.session.session import Membership, Session
from broker_adapter.mqtt.session.sessions import Sessions
from broker_adapter.mqtt.session.settings import SessionSettings
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.mqtt.session.takeover import OpenedSession

__all__ = [
    "BrokerReplacedError",
    "ClientGoneError",
    "Membership",
    "OpenedSession",
    "Retained",
    "Session",
    "SessionOfAnotherUserError",
    "SessionSettings",
    "SessionStatistics",
    "SessionTakenOverError",
    "Sessions",
    "StoreUnavailableError",
]
