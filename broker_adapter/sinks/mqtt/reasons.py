"""What another broker's reason codes mean for a sink: who is to blame, a message or nobody. Pure."""

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
"""In PUBACK: this message is not taken, and would not be a moment later. Other failures there are outages."""

BLAMES_MESSAGE: Final = frozenset(
    {
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
"""In DISCONNECT: a message was to blame, which one it does not say."""

_ADVICE: Final = {
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "give the sink another user and password",
    ReasonCode.NOT_AUTHORIZED: "let this user in at the broker, or give the sink another user and password",
    ReasonCode.BANNED: "let this user in at the broker",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "set client_id to one that the broker takes",
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "set version to what the broker speaks",
    ReasonCode.RETAIN_NOT_SUPPORTED: "set retain to false",
    ReasonCode.SESSION_TAKEN_OVER: "another client has the same client_id; give each its own",
    ReasonCode.USE_ANOTHER_SERVER: "set address to the other server",
    ReasonCode.SERVER_MOVED: "set address to where the server is now",
}
_SHOWN_CHARACTERS: Final = 200


def told(reason_code: ReasonCode, reason_string: str | None) -> str:
    """A reason code in words, with what the broker says of it and the way out: ``not authorized (0x87): ...``."""
    words = f"{reason_code.name.lower().replace('_', ' ')} ({reason_code:#04x})"
    if reason_string:
        printable = "".join(each if each.isprintable() else " " for each in reason_string)
        words += f": {printable[:_SHOWN_CHARACTERS]}"
    return words


def advice(reason_code: ReasonCode) -> str:
    """The way out, to stand behind `told`; empty if there is nothing to do but wait."""
    return f"; {_ADVICE[reason_code]}" if reason_code in _ADVICE else ""
