"""From the store to the sessions: tails that all of them share, catching up, groups, replay; bounded everywhere."""

from broker_adapter.mqtt.delivery.arrival import Arrival
from broker_adapter.mqtt.delivery.distributor import DeliveryStatistics, Distributor
from broker_adapter.mqtt.delivery.inbox import Inbox, InboxLimits

__all__ = ["Arrival", "DeliveryStatistics", "Distributor", "Inbox", "InboxLimits"]
