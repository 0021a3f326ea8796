"""A peer broke the MQTT protocol: the only error of the codec, and the one of what only a session's state shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_adapter.mqtt_codec.reason_codes import ReasonCode

if TYPE_CHECKING:
    from broker_adapter.mqtt_codec.packets import Packet


class MqttProtocolError(Exception):
    """The peer broke the protocol: send `answer`, if there is any, and close the connection.

    Attributes:
        reason_code: Reason code of MQTT 5; it is also set for MQTT 3.1.1, which cannot express it.
        packets: Complete and valid packets before the error in the same call.
        answer: The last bytes to send, a CONNACK or a DISCONNECT; empty where no answer is sent: before the peer named
            a version, in MQTT 3.1.1 except for the return codes 1 and 2, and where `is_answerable` is false.
        is_answerable: False where the peer may not speak MQTT at all, for example where its first packet is no CONNECT.
    """

    def __init__(self, reason_code: ReasonCode, message: str, *, is_answerable: bool = True) -> None:
        super().__init__(message)
        self.reason_code = reason_code
        self.packets: list[Packet] = []
        self.answer = b""
        self.is_answerable = is_answerable


def malformed(message: str, *, is_answerable: bool = True) -> MqttProtocolError:
    """A malformed packet: the bytes do not have the layout of the standard."""
    return MqttProtocolError(ReasonCode.MALFORMED_PACKET, message, is_answerable=is_answerable)


def protocol_error(message: str, *, is_answerable: bool = True) -> MqttProtocolError:
    """A protocol error: the bytes can be decoded, but a value is not allowed, or is missing."""
    return MqttProtocolError(ReasonCode.PROTOCOL_ERROR, message, is_answerable=is_answerable)


class ProtocolViolationError(Exception):
    """The client broke the protocol in a way that only the state of its session shows. The connection ends.

    Attributes:
        reason_code: Reason code of DISCONNECT.
    """

    def __init__(self, reason_code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code
