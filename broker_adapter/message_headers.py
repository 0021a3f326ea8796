"""Names of the headers of records that store MQTT messages. ``docs/mqtt.md`` describes their values."""

from __future__ import annotations

from typing import Final

CLIENT: Final = "client"
QOS: Final = "qos"
RETAIN: Final = "retain"
CONTENT_TYPE: Final = "content-type"
RESPONSE_TOPIC: Final = "response-topic"
CORRELATION_DATA: Final = "correlation-data"
PAYLOAD_FORMAT: Final = "payload-format"
USER_PROPERTY: Final = "user-property"
