"""What publishers, operators and the injector of faults know of a bridge, as a history that a checker judges."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from tests.torture.deliveries.history import NEVER, History, Interval, Message, Offer, Outcome


@attrs.define
class Ledger:
    """All that is known.

    Attributes:
        history: What is judged.
        sent: How many messages were handed to a publisher, by topic; their numbers are those below.
    """

    history: History = attrs.Factory(History)
    sent: Counter[str] = attrs.Factory(Counter)
    now_s: Callable[[], float] = time.monotonic

    @property
    def acknowledged_count(self) -> int:
        """Messages that a broker took."""
        return sum(offer.outcome is Outcome.OK for offer in self.history.offers.values())

    def send(self, topic: str, *, is_poison: bool = False) -> Message:
        """The next message of a topic."""
        message = Message(topic, self.sent[topic])
        self.sent[topic] += 1
        self.history.offers[message] = Offer(message, self.now_s(), writes=0, is_poison=is_poison)
        return message

    def write(self, message: Message) -> None:
        """A message is about to be written to a connection, for the first time or again."""
        self.history.offers[message].writes += 1

    def settle(self, message: Message, *, is_taken: bool) -> None:
        """A broker answered."""
        offer = self.history.offers[message]
        offer.outcome, offer.ended_s = Outcome.OK if is_taken else Outcome.REFUSED, self.now_s()

    @contextmanager
    def during(self, kind: Callable[..., Interval], **fields: Any) -> Iterator[dict[str, Any]]:
        """Note something that takes as long as the block; without an end if the block fails.

        Yields:
            Its fields, to which the block may add what it learns.
        """
        began_s = self.now_s()
        try:
            yield fields
        except BaseException:
            self.history.events.append(kind(began_s=began_s, ended_s=NEVER, **fields))
            raise
        self.history.events.append(kind(began_s=began_s, ended_s=self.now_s(), **fields))
