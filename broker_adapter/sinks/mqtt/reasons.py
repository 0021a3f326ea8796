"""Meaning of another broker's reason codes for a sink: whether a message is the cause. Pure."""

from __future__ import annotations

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
