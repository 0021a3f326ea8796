"""The one error of the codec: what a peer sent breaks the rules of MQTT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_adapter.mqtt_codec.reason_codes import ReasonCode

if TYPE_CHECKING:
    from broker_adapter.mqtt_codec.packets import Packet


class MqttProtocolError(Exception):
    """The peer broke the rules: send `answer`, if there is any, and close the connection.

    Attributes:
        reason_code: What MQTT 5 calls it; there is one for MQTT 3.1.1 too, though it cannot be told.
        packets: Those that came whole and sound before the fault in the same call.
        answer: The last bytes to send, a CONNACK or a DISCONNECT; empty where the peer is not told: before it named a
            version, in MQTT 3.1.1 but for the return codes 1 and 2, and where `is_told` is false.
        is_told: False where nothing the peer sent can be trusted enough to be answered, as a length without an end.
    """

    def __init__(self, reason_code: ReasonCode, message: str, *, is_told: bool = True) -> None:
        super().__init__(message)
        self.reason_code = reason_code
        self.packets: list[Packet] = []
        self.answer = b""
        self.is_told = is_told


def malformed(message: str, *, is_told: bool = True) -> MqttProtocolError:
    """The bytes cannot be read as the standard lays them out."""
    return MqttProtocolError(ReasonCode.MALFORMED_PACKET, message, is_told=is_told)


def protocol_error(message: str, *, is_told: bool = True) -> MqttProtocolError:
    """The bytes can be read, but what they say is not allowed, or not there."""
    return MqttProtocolError(ReasonCode.PROTOCOL_ERROR, message, is_told=is_told)
