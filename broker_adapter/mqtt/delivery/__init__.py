"""From the store to the sessions: tails that all of them share, catching up, groups, replay; bounded everywhere."""

from broker_adapter.mqtt.delivery.arrival import Arrival
from broker_adapter.mqtt.delivery.distributor import LIVE_TARGET, Distributor
from broker_adapter.mqtt.delivery.inbox import Inbox
from broker_adapter.mqtt.delivery.limits import DeliveryLimits, DeliveryStatistics

__all__ = ["LIVE_TARGET", "Arrival", "DeliveryLimits", "DeliveryStatistics", "Distributor", "Inbox"]
