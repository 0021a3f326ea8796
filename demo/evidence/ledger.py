"""Ledger of a client: every message that it published, that was acknowledged, or that it received."""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b
from itertools import pairwise

import attrs

_DIGEST_BYTES = 8


def digest_of(payload: bytes) -> str:
    """Short hash of a payload; two messages of a run never have the same by chance."""
    return blake2b(payload, digest_size=_DIGEST_BYTES).hexdigest()


@attrs.define(slots=True)
class Published:
    """One published message.

    Attributes:
        digest: Hash of its payload.
        size_bytes: Size of its payload.
        metric: Value of its source's metric, if that is a number.
        begun_at_us: When it was passed to the client.
        acknowledged_at_us: When it was acknowledged (PUBACK, PUBCOMP); 0 if it was not.
    """

    digest: str
    size_bytes: int
    metric: float | None
    begun_at_us: int
    acknowledged_at_us: int = 0


@attrs.define(slots=True)
class PublisherLedger:
    """The messages of one publisher, by topic, in order: the index in the list is the message's number."""

    topics: dict[str, list[Published]] = attrs.Factory(dict)

    def acknowledged_of_later_than(self, moment_us: int) -> int | None:
        """Time of the first acknowledgement of a message that was published after a moment; None if there is none."""
        found: list[int] = []
        for messages in self.topics.values():
            for each in reversed(messages):
                if each.begun_at_us <= moment_us:
                    break
                if each.acknowledged_at_us:
                    found.append(each.acknowledged_at_us)
        return min(found, default=None)

    def longest_pause_us(self, since_us: int, until_us: int) -> int:
        """The longest time between two acknowledgements, of which one came after a moment and one before another one.

        Args:
            since_us: The second one of the two came after it.
            until_us: The first one of the two came before it.

        Returns:
            0 if no two acknowledgements are such.
        """
        moments = sorted(
            each.acknowledged_at_us for messages in self.topics.values() for each in messages if each.acknowledged_at_us
        )
        pauses = (later - one for one, later in pairwise(moments) if later > since_us and one < until_us)
        return max(pauses, default=0)


@attrs.frozen(slots=True)
class Received:
    """One received message.

    Attributes:
        number: Its publisher's number, -1 if the payload has none.
        digest: Hash of its payload.
        delay_us: From the publisher's call to the delivery.
    """

    number: int
    digest: str
    delay_us: int


@attrs.define(slots=True)
class SubscriberLedger:
    """The messages that one subscriber received, by topic, in order of receipt."""

    topics: defaultdict[str, list[Received]] = attrs.Factory(lambda: defaultdict(list))

    @property
    def count(self) -> int:
        """Number of all messages."""
        return sum(map(len, self.topics.values()))
