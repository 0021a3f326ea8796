"""The reason why another broker refused a message or closed the connection: by its code, or by repetition. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker_adapter.mqtt_codec import ReasonCode

REFUSES_MESSAGE: Final = frozenset(
    {
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
"""In PUBACK: this message is refused, and would be refused again. Other failures in PUBACK are outages."""

BLAMES_MESSAGE: Final = frozenset(
    {
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
"""In DISCONNECT: a message was the cause; the code does not say which one."""

_ADVICE: Final = {
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "give the sink another user and password",
    ReasonCode.NOT_AUTHORIZED: "allow this user at the broker, or give the sink another user and password",
    ReasonCode.BANNED: "allow this user at the broker",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "set client_id to one that the broker accepts",
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "set version to one that the broker supports",
    ReasonCode.RETAIN_NOT_SUPPORTED: "set retain to false",
    ReasonCode.SESSION_TAKEN_OVER: "another client has the same client_id; give each its own",
    ReasonCode.USE_ANOTHER_SERVER: "set address to the other server",
    ReasonCode.SERVER_MOVED: "set address to the new address of the server",
}
_SHOWN_CHARACTERS: Final = 200


def reason_text(reason_code: ReasonCode, reason_string: str | None) -> str:
    """A reason code as text, with the broker's reason string: ``not authorized (0x87): ...``."""
    words = f"{reason_code.name.lower().replace('_', ' ')} ({reason_code:#04x})"
    if reason_string:
        printable = "".join(each if each.isprintable() else " " for each in reason_string)
        words += f": {printable[:_SHOWN_CHARACTERS]}"
    return words


def advice(reason_code: ReasonCode) -> str:
    """What the operator can do, to be put after `reason_text`; empty if waiting is enough."""
    return f"; {_ADVICE[reason_code]}" if reason_code in _ADVICE else ""


_ENOUGH_COUNT: Final = 3


class PoisonMessageDetector:
    """Finds the message because of which a broker closes connections, when the broker does not say so.

    MQTT 3.1.1 has no other way to refuse a message, and mosquitto 2.0.11 closes before its PUBACK of MQTT 5 is sent if
    other messages are in progress after it. If this only counted as an outage, the message would be sent for ever. So
    messages without an answer at the end of a connection are sent again one at a time. A message that was the first
    without an answer three times in a row, the last time alone, is the cause.

    There is one for one queue and one broker, for all connections. Offsets are those of the queue.
    """

    def __init__(self) -> None:
        self._suspect_offset: int | None = None
        self._count = 0
        self._careful_to_offset = -1

    def must_go_alone(self, offset: int) -> bool:
        """Whether this message has to be sent alone."""
        return offset <= self._careful_to_offset

    def closed(self, under_way: Sequence[int]) -> bool:
        """The broker closed with these messages unanswered, in order; returns whether the first one is the cause."""
        if not under_way:
            return False
        self._count = self._count + 1 if under_way[0] == self._suspect_offset else 1
        self._suspect_offset = under_way[0]
        self._careful_to_offset = max(under_way)
        return len(under_way) == 1 and self._count >= _ENOUGH_COUNT
