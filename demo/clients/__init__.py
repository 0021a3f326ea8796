"""Real MQTT clients: paho-mqtt in threads of their own, each going on at another broker when its own is lost."""

from demo.clients.publisher import Publisher
from demo.clients.roaming_client import RoamingClient
from demo.clients.subscriber import Subscriber

__all__ = ["Publisher", "RoamingClient", "Subscriber"]
