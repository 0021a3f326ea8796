"""Faults of a client that no single packet shows; those that one does are `codec.MqttProtocolError`."""

from __future__ import annotations

from broker_adapter.mqtt_codec.reason_codes import ReasonCode


class ConversationError(Exception):
    """The client broke a rule of the conversation, so the connection ends.

    Attributes:
        reason_code: What DISCONNECT says.
    """

    def __init__(self, reason_code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code
