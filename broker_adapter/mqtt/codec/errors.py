"""The one error that bytes from a peer can cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_adapter.mqtt.codec.reason_codes import ReasonCode

if TYPE_CHECKING:
    from broker_adapter.mqtt.codec.packets import Packet


class MqttProtocolError(Exception):
    """A peer broke the protocol: the connection must be closed, with `reason_code` where the version has reasons.

    Attributes:
        reason_code: What to tell the peer.
        packets: Whole and sound packets that came before the fault in the same call of the decoder.
        answer: The last bytes to send, a CONNACK or a DISCONNECT; empty where the version has none for it.
    """

    def __init__(self, reason_code: ReasonCode, problem: str) -> None:
        super().__init__(problem)
        self.reason_code = reason_code
        self.packets: list[Packet] = []
        self.answer = b""


def malformed(problem: str) -> MqttProtocolError:
    """The bytes are no packet of this version."""
    return MqttProtocolError(ReasonCode.MALFORMED_PACKET, problem)


def protocol_error(problem: str) -> MqttProtocolError:
    """The bytes are a packet, but one that may not say this."""
    return MqttProtocolError(ReasonCode.PROTOCOL_ERROR, problem)
