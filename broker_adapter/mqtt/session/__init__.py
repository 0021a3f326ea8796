"""Sessions that outlive their broker: kept in the store, owned by one broker at a time, taken by compare-and-set."""

from broker_adapter.mqtt.model.origin import Origin
from broker_adapter.mqtt.session.errors import (
    BrokerReplacedError,
    ClientGoneError,
    SessionError,
    SessionTakenOverError,
    StoreUnavailableError,
)
from broker_adapter.mqtt.session.outbound_window import InFlight, OutboundWindow
from broker_adapter.mqtt.session.retained import Retained
from broker_adapter.mqtt.session.session import NEVER_EXPIRES_S, Membership, Session
from broker_adapter.mqtt.session.sessions import OpenedSession, Sessions
from broker_adapter.mqtt.session.settings import SessionSettings
from broker_adapter.mqtt.session.statistics import SessionStatistics

__all__ = [
    "NEVER_EXPIRES_S",
    "BrokerReplacedError",
    "ClientGoneError",
    "InFlight",
    "Membership",
    "OpenedSession",
    "Origin",
    "OutboundWindow",
    "Retained",
    "Session",
    "SessionError",
    "SessionSettings",
    "SessionStatistics",
    "SessionTakenOverError",
    "Sessions",
    "StoreUnavailableError",
]
