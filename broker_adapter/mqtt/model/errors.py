"""Protocol errors of a client that show only in the state of its session; see `mqtt_codec.MqttProtocolError`."""

from __future__ import annotations

from broker_adapter.mqtt_codec.reason_codes import ReasonCode


class ProtocolViolationError(Exception):
    """The client broke the protocol, so the connection ends.

    Attributes:
        reason_code: Reason code of DISCONNECT.
    """

    def __init__(self, reason_code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code
