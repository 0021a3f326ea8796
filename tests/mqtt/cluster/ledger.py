"""What publishers sent and were promised, and what subscribers got: whether the cluster kept its promises. Pure.

The promises:

- Each message that was acknowledged reaches every subscription that was acknowledged before it was sent, at QoS 1 at
  least once and at QoS 2 exactly once; a group that shares a subscription counts as one subscriber.
- What one publisher sends to one topic at one QoS arrives in its order.
- A new subscription gets the value that its topic retained at one moment between SUBSCRIBE and SUBACK, and everything
  that came after that moment.
- A delayed message is published once, unless its publisher sent it again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
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
        acknowledged: Numbers of those that a broker has taken over, and when (seconds).
        is_retained: Whether each of them replaces what the topic retains.
        is_delayed: Whether they are published by a broker some time after their acknowledgement, in no certain order.
        may_be_lost: Whether an acknowledgement says only that the store has it in memory.
        writes: How often each was written to a connection.
    """

    count: int = 0
    acknowledged: dict[int, float] = attrs.Factory(dict)
    is_retained: bool = False
    is_delayed: bool = False
    may_be_lost: bool = False
    writes: Counter[int] = attrs.Factory(Counter)


@attrs.define
class Subscriber:
    """What came of one subscription, or of a group that shares one.

    Attributes:
        qos: Highest QoS it asked for.
        is_group: Its members get each message once between them, in no order that could be told.
        prefix: With which the topics of its filter begin.
        received: Numbers in the order in which they came, by stream.
        owed_from: By stream, the first number that was sent after the subscription was acknowledged; 0 if missing.
        retained_at_least: By stream that retains, the newest number acknowledged before the subscription was asked for.
        firsts: How often a message came that was not marked as a repetition, by (connection, stream, number).
        longest_wait_s: Time from a message's acknowledgement to its first arrival, the longest.
        longest: Which message that was.
    """

    qos: int
    is_group: bool = False
    prefix: str = ""
    received: dict[Stream, list[int]] = attrs.Factory(dict)
    owed_from: dict[Stream, int] = attrs.Factory(dict)
    retained_at_least: dict[Stream, int] = attrs.Factory(dict)
    firsts: Counter[tuple[str, Stream, int]] = attrs.Factory(Counter)
    longest_wait_s: float = 0.0
    longest: str = ""
    _seen: set[tuple[Stream, int]] = attrs.Factory(set)

    def covers(self, stream: Stream) -> bool:
        """Whether its filter has the topic of a stream."""
        return stream.topic.startswith(self.prefix)

    def take(self, stream: Stream, number: int, waited_s: float) -> None:
        """Enter a message."""
        self.received.setdefault(stream, []).append(number)
        if (stream, number) not in self._seen:
            self._seen.add((stream, number))
            if waited_s > self.longest_wait_s:
                self.longest_wait_s, self.longest = waited_s, f"{stream} {number}"

    def missing(self, stream: Stream, sent: Sent) -> list[int]:
        """Acknowledged numbers that are owed to it and have not come, in order."""
        if sent.may_be_lost or not self.covers(stream):
            return []
        numbers = self.received.get(stream, ())
        first = self.owed_from.get(stream, 0)
        if sent.is_retained and numbers:
            # What it was given as retained came from one moment; all that was stored later is owed.
            first = min(first, *numbers)
        return sorted(number for number in sent.acknowledged.keys() - set(numbers) if number >= first)


@attrs.define
class Ledger:
    """All that the clients of a cluster know."""

    streams: dict[Stream, Sent] = attrs.Factory(dict)
    subscribers: dict[str, Subscriber] = attrs.Factory(dict)
    strangers: list[str] = attrs.Factory(list)
    lost_sessions: list[str] = attrs.Factory(list)
    refusals: Counter[str] = attrs.Factory(Counter)
    clock: Callable[[], float] = time.monotonic

    def subscribe(self, name: str, qos: int, *, is_group: bool = False, prefix: str = "") -> None:
        """Someone is about to ask for a subscription to the topics that begin with ``prefix``."""
        found = self.subscribers[name] = Subscriber(qos, is_group, prefix)
        for stream, sent in self.streams.items():
            if sent.is_retained and sent.acknowledged and found.covers(stream):
                found.retained_at_least[stream] = max(sent.acknowledged)

    def subscribed(self, name: str) -> None:
        """The subscription was acknowledged: what is sent from now on is owed to it."""
        found = self.subscribers[name]
        found.owed_from = {stream: sent.count for stream, sent in self.streams.items() if found.covers(stream)}

    def send(
        self, stream: Stream, *, is_retained: bool = False, is_delayed: bool = False, may_be_lost: bool = False
    ) -> int:
        """The next message of a stream is handed to the client; its number."""
        sent = self.streams.setdefault(stream, Sent())
        sent.is_retained, sent.is_delayed, sent.may_be_lost = is_retained, is_delayed, may_be_lost
        sent.count += 1
        return sent.count - 1

    def write(self, stream: Stream, number: int) -> None:
        """A message is about to be written to a connection, for the first time or again."""
        self.streams[stream].writes[number] += 1

    def acknowledge(self, stream: Stream, number: int) -> None:
        """A broker has taken it over (PUBACK or PUBREC)."""
        self.streams[stream].acknowledged.setdefault(number, self.clock())

    def receive(self, subscriber: str, stream: Stream, number: int, *, connection: str = "", dup: bool = True) -> None:
        """A subscriber got it; a repetition that its own protocol state recognises is not entered.

        Args:
            connection: On which it came.
            dup: Whether the broker said that it may have come before.
        """
        sent, found = self.streams.get(stream), self.subscribers[subscriber]
        if sent is None or number >= sent.count:
            self.strangers.append(f"{subscriber} got {stream} {number}")
        acknowledged_s = sent.acknowledged.get(number) if sent else None
        found.take(stream, number, 0.0 if acknowledged_s is None else self.clock() - acknowledged_s)
        if not dup:
            found.firsts[connection, stream, number] += 1

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
            len(subscriber.missing(stream, sent))
            for subscriber in self.subscribers.values()
            for stream, sent in self.streams.items()
        )

    def longest_wait(self) -> tuple[float, str]:
        """How long (seconds) a message was under way at most after its acknowledgement, and which to whom."""
        return max(
            ((each.longest_wait_s, f"{each.longest} to {name}") for name, each in self.subscribers.items()),
            default=(0.0, ""),
        )

    def problems(self) -> list[str]:
        """The promises that were not kept, a line each."""
        found = [f"no client sent this: {each}" for each in self.strangers]
        found += [f"a broker had forgotten the session of {each}" for each in self.lost_sessions]
        found += [f"{client_id}: {count} publishes were refused" for client_id, count in self.refusals.items()]
        for name, subscriber in self.subscribers.items():
            for stream, sent in self.streams.items():
                found += (f"{name}, {stream}: {problem}" for problem in _problems(subscriber, stream, sent))
        return found

    def repetitions(self) -> list[str]:
        """Messages that came more often on one connection, unmarked, than their publisher has written them.

        Only where no broker died: what one has delivered since its last stored position comes again from another. Of
        retained messages docs/mqtt.md says that a lost answer of the store doubles them.
        """
        return [
            f"{name}, {stream}: {number} came {count} times, it was sent {self.streams[stream].writes[number]} times"
            for name, subscriber in self.subscribers.items()
            for (_, stream, number), count in sorted(subscriber.firsts.items())
            if not subscriber.is_group
            and stream in self.streams
            and not self.streams[stream].is_retained
            and count > self.streams[stream].writes[number]
        ]

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

    def replay_problems(self, found: dict[Stream, list[int]]) -> list[str]:
        """Compare what a replay from the beginning gave: everything that was acknowledged, once, in its order."""
        problems: list[str] = []
        for stream, sent in self.streams.items():
            numbers = found.get(stream, [])
            if lost := sent.acknowledged.keys() - set(numbers):
                problems.append(f"replay, {stream}: {len(lost)} acknowledged messages are missing, like {min(lost)}")
            if not sent.is_delayed and list(dict.fromkeys(numbers)) != sorted(set(numbers)):
                problems.append(f"replay, {stream}: out of order")
            again = Counter(numbers)
            # At QoS 1 a publisher that sent a message again may have stored it again.
            if stream.qos == 2 and (more := [each for each, count in again.items() if count > 1]):
                problems.append(f"replay, {stream}: {len(more)} messages are stored more than once, like {min(more)}")
        return problems


def _problems(subscriber: Subscriber, stream: Stream, sent: Sent) -> Iterable[str]:
    numbers = subscriber.received.get(stream, [])
    lost = subscriber.missing(stream, sent)
    if lost:
        yield f"{len(lost)} of {len(sent.acknowledged)} acknowledged messages did not come, the first is {lost[0]}"
    at_least = subscriber.retained_at_least.get(stream)
    if at_least is not None:
        first = min(numbers, default=-1)
        end = subscriber.owed_from.get(stream, sent.count)
        if not at_least <= first < max(end, at_least + 1):
            what = f"the first value that came is {first}" if numbers else "none came"
            yield f"{at_least} was retained when it subscribed, {end} was not sent before SUBACK, but {what}"
    once = min(stream.qos, subscriber.qos) == 2
    again = [number for number, count in Counter(numbers).items() if count > 1]
    if once and again:
        yield f"{len(again)} messages came more than once, the first is {min(again)}"
    if not subscriber.is_group and not sent.is_delayed:
        # A repetition may come late; what comes for the first time may not.
        wrong = [pair for pair in pairwise(dict.fromkeys(numbers)) if pair[0] > pair[1]]
        if wrong:
            yield f"{len(wrong)} messages came out of order: {wrong[0][1]} after {wrong[0][0]}"
