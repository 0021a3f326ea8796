"""Real MQTT clients: paho-mqtt in threads of their own; each connects to another broker when it loses its own."""

from demo.clients.publisher import Publisher
from demo.clients.roaming_client import RoamingClient
from demo.clients.subscriber import Subscriber

__all__ = ["Publisher", "RoamingClient", "Subscriber"]
