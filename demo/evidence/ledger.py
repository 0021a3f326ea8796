"""What a client swears to: every message that it published, had acknowledged, or received."""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b

import attrs

_DIGEST_BYTES = 8


def digest_of(payload: bytes) -> str:
    """Short name of a payload; two messages of a run never share one by chance."""
    return blake2b(payload, digest_size=_DIGEST_BYTES).hexdigest()


@attrs.define(slots=True)
class Published:
    """One message that was handed to the client.

    Attributes:
        digest: Of its payload.
        size_bytes: Of its payload.
        metric: What it says of its source's metric, if that is a number.
        begun_at_us: When it was handed over.
        acknowledged_at_us: When a broker had taken it over (PUBACK, PUBCOMP); 0 if none has.
    """

    digest: str
    size_bytes: int
    metric: float | None
    begun_at_us: int
    acknowledged_at_us: int = 0


@attrs.define(slots=True)
class PublisherLedger:
    """What one publisher has published, by topic, in order: the place in the list is the message's number."""

    topics: dict[str, list[Published]] = attrs.Factory(dict)

    def acknowledged_of_later_than(self, moment_us: int) -> int | None:
        """When the first acknowledgement came of what was handed over after a moment; None if none has."""
        found: list[int] = []
        for messages in self.topics.values():
            for each in reversed(messages):
                if each.begun_at_us <= moment_us:
                    break
                if each.acknowledged_at_us:
                    found.append(each.acknowledged_at_us)
        return min(found, default=None)


@attrs.frozen(slots=True)
class Received:
    """One message that a client was given.

    Attributes:
        number: Its publisher's number, -1 if the payload has none.
        digest: Of its payload.
        delay_us: From the publisher's call to the delivery.
    """

    number: int
    digest: str
    delay_us: int


@attrs.define(slots=True)
class SubscriberLedger:
    """What one subscriber was given, by topic, in the order in which it came."""

    topics: defaultdict[str, list[Received]] = attrs.Factory(lambda: defaultdict(list))

    @property
    def count(self) -> int:
        """Messages in all."""
        return sum(map(len, self.topics.values()))
