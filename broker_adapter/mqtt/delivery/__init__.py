"""From the store to the sessions: tails that all of them share, catching up, groups, replay; bounded everywhere."""

from broker_adapter.mqtt.delivery.distributor import Distributor
from broker_adapter.mqtt.delivery.inbox import Inbox
from broker_adapter.mqtt.delivery.limits import DeliveryLimits, DeliveryStatistics
from broker_adapter.mqtt.delivery.outgoing_message import Arrival

__all__ = ["Arrival", "DeliveryLimits", "DeliveryStatistics", "Distributor", "Inbox"]
