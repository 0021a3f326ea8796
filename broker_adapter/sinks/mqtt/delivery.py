"""Delivery of a batch to another broker: which of its messages are confirmed or refused. Without sockets."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from broker_adapter.sinks.errors import Refusal, RowsRefusedError, SinkError


@attrs.frozen(slots=True)
class Message:
    """A row as a message.

    Attributes:
        index: Index of the row in the batch.
        offset: Offset of the record in the queue.
    """

    index: int
    offset: int
    topic: str
    payload: bytes


class Delivery:
    """The state of a batch that is being sent.

    Args:
        messages: In order, without those that are refused before they are sent.
        refusals: The messages refused before they are sent.

    Attributes:
        finished: Set once every message is confirmed or refused, or the delivery failed.
        next_message: How many of the messages were sent.
    """

    def __init__(self, messages: Sequence[Message], refusals: Sequence[Refusal]) -> None:
        self.messages = messages
        self.next_message = 0
        self.finished = trio.Event()
        self._refusals = list(refusals)
        self._unsettled_count = len(messages)
        self._row_count = len(messages) + len(refusals)
        self._error: SinkError | None = None
        if not messages:
            self.finished.set()

    @property
    def is_sent(self) -> bool:
        """Whether nothing is left to send."""
        return self.next_message == len(self.messages)

    def confirm(self) -> None:
        """One message was accepted."""
        self._unsettled_count -= 1
        if not self._unsettled_count:
            self.finished.set()

    def refuse(self, message: Message, reason: str) -> None:
        """One message was refused."""
        self._refusals.append(Refusal(message.index, reason))
        self.confirm()

    def fail(self, error: SinkError) -> None:
        """All messages without an answer fail with this error."""
        if not self.finished.is_set():
            self._error = error
            self.finished.set()

    def failed_with(self, error: SinkError | None) -> bool:
        """Whether it failed with this error."""
        return self._error is not None and self._error is error

    def raise_unless_taken(self, address: str) -> None:
        """Raise the outcome, once it is finished; return if all messages were accepted.

        Raises:
            RowsRefusedError: Some messages were refused.
            SinkError: The error of `fail`.
        """
        if self._error is not None:
            raise self._error
        if self._refusals:
            refusals = tuple(sorted(self._refusals, key=lambda refusal: refusal.index))
            raise RowsRefusedError(f"{address} refused {len(refusals)} of {self._row_count} messages", refusals)
