"""What publishers sent and were promised, and what subscribers got: whether the cluster kept its word. Pure.

The promises: whatever was acknowledged reaches every subscription that was there before, at QoS 1 at least once and at
QoS 2 exactly once; what one publisher sends to one topic at one QoS arrives in its order; the value that is retained is
the last one acknowledged, or one sent later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import attrs


@attrs.frozen(order=True)
class Stream:
    """What one publisher sends to one topic at one QoS, numbered from 0."""

    publisher: str
    topic: str
    qos: int


@attrs.define
class Sent:
    """What became of one stream.

    Attributes:
        count: Messages handed to the client, which are those with the numbers below.
        acknowledged: Numbers of those that a broker has taken over.
        is_retained: Whether each of them replaces what the topic retains.
    """

    count: int = 0
    acknowledged: set[int] = attrs.Factory(set)
    is_retained: bool = False


@attrs.define
class Subscriber:
    """What came of one subscription, or of a group that shares one.

    Attributes:
        qos: Highest QoS it asked for.
        is_group: Its members get each message once between them, in no order that could be told.
        received: Numbers in the order in which they came, by stream.
    """

    qos: int
    is_group: bool = False
    received: dict[Stream, list[int]] = attrs.Factory(dict)


@attrs.define
class Ledger:
    """All that the clients of a cluster know."""

    streams: dict[Stream, Sent] = attrs.Factory(dict)
    subscribers: dict[str, Subscriber] = attrs.Factory(dict)
    strangers: list[str] = attrs.Factory(list)
    lost_sessions: list[str] = attrs.Factory(list)
    refusals: Counter[str] = attrs.Factory(Counter)

    def subscribe(self, name: str, qos: int, *, is_group: bool = False) -> None:
        """A subscription to everything is in place, before anything was sent."""
        self.subscribers[name] = Subscriber(qos, is_group)

    def send(self, stream: Stream, *, is_retained: bool = False) -> int:
        """The next message of a stream is handed to the client; its number."""
        sent = self.streams.setdefault(stream, Sent(is_retained=is_retained))
        sent.count += 1
        return sent.count - 1

    def acknowledge(self, stream: Stream, number: int) -> None:
        """A broker has taken it over (PUBACK or PUBREC)."""
        self.streams[stream].acknowledged.add(number)

    def receive(self, subscriber: str, stream: Stream, number: int) -> None:
        """A subscriber got it; a repetition that its own protocol state recognises is not entered."""
        sent = self.streams.get(stream)
        if sent is None or number >= sent.count:
            self.strangers.append(f"{subscriber} got {stream} {number}")
        self.subscribers[subscriber].received.setdefault(stream, []).append(number)

    def lose_session(self, client_id: str) -> None:
        """A broker did not know a durable session."""
        self.lost_sessions.append(client_id)

    def refuse(self, client_id: str) -> None:
        """A broker refused a publish."""
        self.refusals[client_id] += 1

    def unacknowledged(self) -> int:
        """Messages that nobody has taken over."""
        return sum(sent.count - len(sent.acknowledged) for sent in self.streams.values())

    def missing(self) -> int:
        """Acknowledged messages that have not come, over all subscribers."""
        return sum(
            len(sent.acknowledged.difference(subscriber.received.get(stream, ())))
            for subscriber in self.subscribers.values()
            for stream, sent in self.streams.items()
        )

    def problems(self) -> list[str]:
        """The promises that were not kept, a line each."""
        found = [f"nobody sent this: {each}" for each in self.strangers]
        found += [f"a broker had forgotten the session of {each}" for each in self.lost_sessions]
        found += [f"{client_id}: {count} publishes were refused" for client_id, count in self.refusals.items()]
        for name, subscriber in self.subscribers.items():
            for stream, sent in self.streams.items():
                numbers = subscriber.received.get(stream, [])
                found += (f"{name}, {stream}: {problem}" for problem in _problems(subscriber, stream, sent, numbers))
        return found

    def retained_problems(self, found: dict[str, tuple[Stream, int] | None]) -> list[str]:
        """Compare what a new subscriber was given for each topic, None for nothing."""
        problems: list[str] = []
        for stream, sent in self.streams.items():
            if not sent.is_retained or not sent.acknowledged:
                continue
            last, value = max(sent.acknowledged), found.get(stream.topic)
            if value is None or value[0] != stream or not last <= value[1] < sent.count:
                problems.append(f"{stream.topic} retains {value}; {last} was the last acknowledged of {sent.count}")
        return problems


def _problems(subscriber: Subscriber, stream: Stream, sent: Sent, numbers: list[int]) -> Iterable[str]:
    lost = sent.acknowledged.difference(numbers)
    if lost:
        yield f"{len(lost)} of {len(sent.acknowledged)} acknowledged messages did not come, the first is {min(lost)}"
    once = min(stream.qos, subscriber.qos) == 2 and not subscriber.is_group
    again = [number for number, count in Counter(numbers).items() if count > 1]
    if once and again:
        yield f"{len(again)} messages came more than once, the first is {min(again)}"
    if not subscriber.is_group:
        # A repetition may come late; what comes for the first time may not.
        wrong = [pair for pair in pairwise(dict.fromkeys(numbers)) if pair[0] > pair[1]]
        if wrong:
            yield f"{len(wrong)} messages came out of order: {wrong[0][1]} after {wrong[0][0]}"
