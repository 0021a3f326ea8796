"""The trio client of the journal service. It needs only the base installation."""

from journal.client.append_future import AppendFuture
from journal.client.appends import AppendLimits
from journal.client.client import Client
from journal.client.opening import open_client, unique_name
from journal.client.receiver import Delivery
from journal.client.reconnection import Reconnection, ServerRestored
from journal.client.session_keeper import SessionTimes
from journal.client.subscription import Feed, Subscription

__all__ = [
    "AppendFuture",
    "AppendLimits",
    "Client",
    "Delivery",
    "Feed",
    "Reconnection",
    "ServerRestored",
    "SessionTimes",
    "Subscription",
    "open_client",
    "unique_name",
]
