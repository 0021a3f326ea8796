"""The trio client of the journal service. Needs no more than the base install."""

from journal.client.client import Client, open_client
from journal.client.pending import PendingAppend
from journal.client.subscription import Delivery, Subscription

__all__ = ["Client", "Delivery", "PendingAppend", "Subscription", "open_client"]
