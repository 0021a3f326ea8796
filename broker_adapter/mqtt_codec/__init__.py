"""Encoding and decoding of MQTT 3.1.1 and 5 packets. Pure: no sockets, no clocks, no event loop.

Errors that a single packet shows are found here; those that depend on the state of a connection or a session are not.
"""

from broker_adapter.mqtt_codec.acknowledgement_bodies import encode_acknowledgements, encode_pubacks
from broker_adapter.mqtt_codec.decoder import Decoder
from broker_adapter.mqtt_codec.encoder import encode
from broker_adapter.mqtt_codec.errors import MqttProtocolError
from broker_adapter.mqtt_codec.packets import Packet, Version
from broker_adapter.mqtt_codec.properties import EMPTY, Properties
from broker_adapter.mqtt_codec.publish_template import PublishTemplate, publish_template
from broker_adapter.mqtt_codec.reason_codes import ReasonCode

__all__ = [
    "EMPTY",
    "Decoder",
    "MqttProtocolError",
    "Packet",
    "Properties",
    "PublishTemplate",
    "ReasonCode",
    "Version",
    "encode",
    "encode_acknowledgements",
    "encode_pubacks",
    "publish_template",
]
