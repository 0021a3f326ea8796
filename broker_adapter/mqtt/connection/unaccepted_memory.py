"""What a connection holds in memory before its client is accepted, counted in the budget of all such connections."""

from __future__ import annotations

from broker_adapter.mqtt.connection.handshake import ConnectRefusedError
from broker_adapter.mqtt.connection.services import ConnectBudget
from broker_adapter.mqtt_codec import ReasonCode


class UnacceptedMemory:
    """The memory of one connection; checking a password may take a while, and much can be sent meanwhile.

    Args:
        budget: The budget of all connections whose clients are not accepted yet.
    """

    __slots__ = ("_budget", "_buffered_bytes", "_counted_bytes", "_is_counting", "_received_bytes")

    def __init__(self, budget: ConnectBudget) -> None:
        self._budget = budget
        self._received_bytes = self._buffered_bytes = self._counted_bytes = 0
        self._is_counting = True

    def received(self, size_bytes: int) -> None:
        """Count bytes that were received.

        Raises:
            ConnectRefusedError: Clients that are not accepted yet occupy too much memory.
        """
        self._received_bytes += size_bytes
        self._count()

    def buffered(self, size_bytes: int) -> None:
        """Count what the stream holds at present of messages that are not complete; nothing after `release`.

        Raises:
            ConnectRefusedError: As `received`.
        """
        self._buffered_bytes = size_bytes
        if self._is_counting:
            self._count()

    def release(self) -> None:
        """Give the memory back to the budget: the client was accepted, or the connection has ended."""
        self._is_counting = False
        self._budget.replace(self._counted_bytes, 0)
        self._counted_bytes = 0

    def _count(self) -> None:
        held_bytes = self._received_bytes + self._buffered_bytes
        counted = self._budget.replace(self._counted_bytes, held_bytes)
        self._counted_bytes = max(0, counted)
        if counted < 0:
            raise ConnectRefusedError(
                ReasonCode.SERVER_BUSY,
                f"it sent {held_bytes} bytes, and clients that are not accepted yet occupy too much memory",
                is_answerable=False,
            )
