"""The sink ``mqtt``: publishes rows as messages at another broker, with QoS 1."""

from __future__ import annotations

from typing import Final

from broker_adapter.sinks.kinds import SinkKind
from broker_adapter.sinks.mqtt.settings import MqttSettings, check
from broker_adapter.sinks.mqtt.sink import open_mqtt_sink

__all__ = ["KIND"]

KIND: Final = SinkKind(settings=MqttSettings, open=open_mqtt_sink, check=check)
