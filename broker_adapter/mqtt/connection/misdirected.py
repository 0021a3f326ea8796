"""Clients of other protocols that connect to a listener of MQTT, by their first bytes: the reason and the answer.

Without an answer such a client would wait for its own time limit, and a decoder might wait for the rest of a packet.
"""

from __future__ import annotations

from typing import Final

import attrs

from broker_adapter.mqtt_codec import ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import Connack
from journal.net.protocol_sniffing import SniffedProtocol, is_hello, spoken_in

_TEXT: Final = b"this port is for MQTT\n"
_BAD_REQUEST: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_TEXT), _TEXT)
)
_CONNACK: Final = encode(Connack(reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION), Version.V311)


@attrs.frozen(slots=True)
class Misdirected:
    """A client that has connected to the wrong port.

    Attributes:
        reason: For the log.
        answer: The last bytes to send to it, which its protocol reports as an error.
    """

    reason: str
    answer: bytes


def misdirected(first: bytes) -> Misdirected | None:
    """What is wrong with the first bytes from a client; None if they may be MQTT."""
    if is_hello(first):
        return Misdirected(
            "a client of the journal server has connected to the broker; it must name the server's listen.tcp (by "
            "default port 7420)",
            _CONNACK,
        )
    spoken = spoken_in(first)
    if spoken is SniffedProtocol.TLS:
        return Misdirected(
            "the client uses TLS, and this listener does not; it must use that of listen.mqtts or listen.websockets",
            _BAD_REQUEST,
        )
    if spoken is SniffedProtocol.HTTP:
        return Misdirected(
            "the client uses HTTP; health and metrics are at listen.http, MQTT over WebSocket at listen.websocket",
            _BAD_REQUEST,
        )
    return None
