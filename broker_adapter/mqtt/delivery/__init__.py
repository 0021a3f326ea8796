"""Delivery from the store to sessions: shared tails, catch-up, groups and replays, all with bounded memory."""

from broker_adapter.mqtt.delivery.distributor import Distributor
from broker_adapter.mqtt.delivery.inbox import Inbox
from broker_adapter.mqtt.delivery.limits import DeliveryLimits, DeliveryStatistics
from broker_adapter.mqtt.delivery.outgoing_message import Arrival

__all__ = ["Arrival", "DeliveryLimits", "DeliveryStatistics", "Distributor", "Inbox"]
