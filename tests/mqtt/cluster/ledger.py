"""What publishers sent and were promised, and what subscribers got: whether the cluster kept its promises. Pure.

The promises:

- Each message that was acknowledged reaches every subscription that was acknowledged before it was sent, at QoS 1 at
  least once and at QoS 2 exactly once; a group that shares a subscription counts as one subscriber.
- What one publisher sends to one topic at one QoS arrives in its order.
- A new subscription gets the value that its topic retained at one moment between SUBSCRIBE and SUBACK, and everything
  that came after that moment. If that value was replaced before the broker read it, the newer one comes in its place;
  after the first live message to the subscriber this is no excuse, since what is retained goes out before it.
- A delayed message is published once, unless its publisher sent it again.
- A message that expires does not come for the first time when it has.
- The will of a client whose connection was lost comes, at QoS 2 once; that of a client that took leave, or was back
  before its delay was over, does not. A session whose time is over is gone, and one whose time is not is there.
- What was trimmed is not replayed, and what was in the memory of a server that died need not come.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import attrs

LATE_S = 5.0
"""How much later than its expiry a message may be seen: it was on its way, and the machine is busy."""


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
        expiry_s: Seconds after which they need not be delivered any more; 0 for never.
        written_s: When each that expires was written last.
        at_risk: Numbers of those that are in the server's memory alone.
        excused: Numbers of those that need not come: they were trimmed, or lost with a memory.
        trimmed: Numbers of those that a replay must not give any more.
        is_will: They are wills: "acknowledged" are those that are to be published, as nothing can keep them from it any
            more. Of the others a broker knows, if it does.
        withdrawn: Numbers of wills that must not be published any more.
    """

    count: int = 0
    acknowledged: dict[int, float] = attrs.Factory(dict)
    is_retained: bool = False
    is_delayed: bool = False
    may_be_lost: bool = False
    writes: Counter[int] = attrs.Factory(Counter)
    expiry_s: int = 0
    written_s: dict[int, float] = attrs.Factory(dict)
    at_risk: set[int] = attrs.Factory(set)
    excused: set[int] = attrs.Factory(set)
    trimmed: set[int] = attrs.Factory(set)
    is_will: bool = False
    withdrawn: set[int] = attrs.Factory(set)

    @property
    def kind(self) -> str:
        """What its messages are, for reports."""
        return "delayed message" if self.is_delayed else "retained message" if self.is_retained else "message"

    @property
    def owed(self) -> set[int]:
        """Acknowledged numbers that any reader gets."""
        return set() if self.may_be_lost or self.expiry_s else self.acknowledged.keys() - self.excused


@attrs.define
class Subscriber:
    """What came of one subscription, or of a group that shares one.

    Attributes:
        qos: Highest QoS it asked for.
        is_group: Its members get each message once between them, in no defined order.
        prefix: With which the topics of its filter begin.
        takes_few: It lets few messages be under way to it, so that it may fall behind by itself.
        received: Numbers in the order in which they came, by stream.
        owed_from: By stream, the first number that was sent after the subscription was acknowledged; 0 if missing.
        retained_at_least: By stream that retains, the newest number acknowledged before the subscription was asked for.
        retained_before: By stream, how many were sent before the first live message came to it: none with a higher
            number can have replaced a retained message before that was read. None while no live message has come.
        is_subscribed: The subscription was acknowledged.
        asked_again: How often it was asked for again in the same session: each time what is retained comes once more.
        firsts: How often a message came that was not marked as a repetition, by (connection, stream, number).
        longest_wait_s: Time from a message's acknowledgement to its first arrival, the longest. For one that takes few
            messages only the time counts in which nothing else came either.
        longest: Which message that was.
    """

    qos: int
    is_group: bool = False
    prefix: str = ""
    takes_few: bool = False
    received: dict[Stream, list[int]] = attrs.Factory(dict)
    owed_from: dict[Stream, int] = attrs.Factory(dict)
    retained_at_least: dict[Stream, int] = attrs.Factory(dict)
    retained_before: dict[Stream, int] | None = None
    is_subscribed: bool = False
    asked_again: int = 0
    firsts: Counter[tuple[str, Stream, int]] = attrs.Factory(Counter)
    longest_wait_s: float = 0.0
    longest: str = ""
    _seen: set[tuple[Stream, int]] = attrs.Factory(set)
    _last_came_s: float = 0.0

    def covers(self, stream: Stream) -> bool:
        """Whether its filter has the topic of a stream."""
        return stream.topic.startswith(self.prefix)

    def take(self, stream: Stream, number: int, now_s: float, acknowledged_s: float | None) -> None:
        """Enter a message.

        Args:
            now_s: When it came.
            acknowledged_s: When its publisher got the acknowledgement; None if it has not yet.
        """
        self.received.setdefault(stream, []).append(number)
        if (stream, number) not in self._seen:
            self._seen.add((stream, number))
            since_s = now_s if acknowledged_s is None else acknowledged_s
            waited_s = now_s - (max(since_s, self._last_came_s) if self.takes_few else since_s)
            if waited_s > self.longest_wait_s:
                self.longest_wait_s, self.longest = waited_s, f"{stream} {number}"
        self._last_came_s = now_s

    def missing(self, stream: Stream, sent: Sent) -> list[int]:
        """Acknowledged numbers that it must get and that have not come, in order."""
        if not self.covers(stream):
            return []
        numbers = self.received.get(stream, ())
        first = self.owed_from.get(stream, 0)
        if sent.is_retained and numbers:
            # What it was given as retained came from one moment; all that was stored later is owed.
            first = min(first, *numbers)
        return sorted(number for number in sent.owed - set(numbers) if number >= first)

    def waits_for_retained(self, stream: Stream) -> bool:
        """Whether its SUBSCRIBE was acknowledged and nothing came yet of a topic that retained a message then."""
        return self.is_subscribed and stream in self.retained_at_least and stream not in self.received


@attrs.define
class Ledger:
    """All that the clients of a cluster know, and those that change its topics.

    Attributes:
        in_memory: Topics whose messages may be in the server's memory alone.
        late: Messages that came though they had expired.
    """

    streams: dict[Stream, Sent] = attrs.Factory(dict)
    subscribers: dict[str, Subscriber] = attrs.Factory(dict)
    strangers: list[str] = attrs.Factory(list)
    lost_sessions: list[str] = attrs.Factory(list)
    undead_sessions: list[str] = attrs.Factory(list)
    refusals: Counter[str] = attrs.Factory(Counter)
    in_memory: set[str] = attrs.Factory(set)
    late: list[str] = attrs.Factory(list)
    clock: Callable[[], float] = time.monotonic

    def subscribe(
        self, name: str, qos: int, *, is_group: bool = False, prefix: str = "", takes_few: bool = False
    ) -> None:
        """Someone is about to ask for a subscription to the topics that begin with ``prefix``."""
        found = self.subscribers[name] = Subscriber(qos, is_group, prefix, takes_few)
        for stream, sent in self.streams.items():
            if sent.is_retained and sent.acknowledged and found.covers(stream):
                found.retained_at_least[stream] = max(sent.acknowledged)

    def ask_again(self, name: str) -> None:
        """The subscription is asked for again, in a session that may have it."""
        self.subscribers[name].asked_again += 1

    def subscribed(self, name: str) -> None:
        """The subscription was acknowledged: it must get what is sent from now on."""
        found = self.subscribers[name]
        found.owed_from = {stream: sent.count for stream, sent in self.streams.items() if found.covers(stream)}
        found.is_subscribed = True

    def send(
        self,
        stream: Stream,
        *,
        is_retained: bool = False,
        is_delayed: bool = False,
        may_be_lost: bool = False,
        expiry_s: int = 0,
    ) -> int:
        """The next message of a stream is handed to the client; its number."""
        sent = self.streams.setdefault(stream, Sent())
        sent.is_retained, sent.is_delayed, sent.may_be_lost = is_retained, is_delayed, may_be_lost
        sent.expiry_s = expiry_s
        if stream.topic in self.in_memory:
            sent.at_risk.add(sent.count)
        sent.count += 1
        return sent.count - 1

    def have_will(self, stream: Stream) -> int:
        """The next will of a client is about to be sent to a broker; its number."""
        number = self.send(stream, is_delayed=True)
        self.streams[stream].is_will = True
        return number

    def withdraw(self, stream: Stream, number: int) -> None:
        """A will must not be published any more."""
        self.streams[stream].withdrawn.add(number)

    def has_come(self, stream: Stream, number: int) -> bool:
        """Whether a subscriber has got a message."""
        return any(number in each.received.get(stream, ()) for each in self.subscribers.values())

    def write(self, stream: Stream, number: int) -> None:
        """A message is about to be written to a connection, for the first time or again."""
        sent = self.streams[stream]
        sent.writes[number] += 1
        if sent.expiry_s:
            sent.written_s[number] = self.clock()

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
        if found.retained_before is None and found.is_subscribed and number >= found.owed_from.get(stream, 0):
            found.retained_before = {each: other.count for each, other in self.streams.items()}
        acknowledged_s = sent.acknowledged.get(number) if sent else None
        found.take(stream, number, self.clock(), acknowledged_s)
        if not dup:
            found.firsts[connection, stream, number] += 1
            self._check_expiry(subscriber, stream, number)

    def _check_expiry(self, subscriber: str, stream: Stream, number: int) -> None:
        sent = self.streams.get(stream)
        if sent is None or number not in sent.written_s:
            return
        late_s = self.clock() - sent.written_s[number] - sent.expiry_s
        if late_s > LATE_S:
            self.late.append(f"{subscriber}, {stream}: {number} came {late_s:.1f} s after it had expired")

    def put_into_memory(self, topic: str) -> None:
        """A topic is about to be kept in memory: what is acknowledged from now on may be there alone."""
        self.in_memory.add(topic)
        for stream, sent in self.streams.items():
            if stream.topic == topic:
                sent.at_risk |= set(range(sent.count)) - sent.acknowledged.keys()

    def put_into_files(self, topic: str) -> None:
        """A topic is kept in files by now; what is in memory stays there."""
        self.in_memory.discard(topic)

    def lose_memory(self) -> None:
        """The server has died: what was in its memory is lost."""
        for sent in self.streams.values():
            sent.excused |= sent.at_risk

    def trim(self, stream: Stream, numbers: Iterable[int]) -> None:
        """Messages are about to be removed."""
        self.streams[stream].excused.update(numbers)

    def trimmed(self, stream: Stream, numbers: Iterable[int]) -> None:
        """Messages were removed. At QoS 1 a publisher may have stored one again."""
        if stream.qos == 2:
            self.streams[stream].trimmed.update(numbers)

    def replayable(self) -> dict[Stream, set[int]]:
        """What a replay from the beginning has to give, if it is asked for now."""
        return {stream: sent.owed for stream, sent in self.streams.items()}

    def lose_session(self, client_id: str) -> None:
        """A broker did not know a durable session."""
        self.lost_sessions.append(client_id)

    def find_undead(self, client_id: str) -> None:
        """A broker knew a session whose time was over."""
        self.undead_sessions.append(client_id)

    def refuse(self, client_id: str) -> None:
        """A broker refused a publish."""
        self.refusals[client_id] += 1

    def unacknowledged(self) -> int:
        """Messages that no broker has acknowledged."""
        return sum(sent.count - len(sent.acknowledged) for sent in self.streams.values() if not sent.is_will)

    def missing(self) -> int:
        """Acknowledged messages that have not come, over all subscribers; with those that are retained for them."""
        return sum(
            len(subscriber.missing(stream, sent)) or subscriber.waits_for_retained(stream)
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
        found += [f"a broker knew the session of {each}, whose time was over" for each in self.undead_sessions]
        found += [f"{client_id}: {count} publishes were refused" for client_id, count in self.refusals.items()]
        found += self.late
        for name, subscriber in self.subscribers.items():
            for stream, sent in self.streams.items():
                found += (f"{name}, {stream}: {problem}" for problem in _problems(subscriber, stream, sent))
        return found

    def repetitions(self) -> list[str]:
        """Messages that came more often on one connection, unmarked, than their publisher has written them.

        Only where no broker died: what one has delivered since its last stored position comes again from another.
        """
        return [
            f"{name}, {stream}: {self.streams[stream].kind} {number} came {count} times, "
            f"it was sent {self.streams[stream].writes[number]} times"
            for name, subscriber in self.subscribers.items()
            for (_, stream, number), count in sorted(subscriber.firsts.items())
            if not subscriber.is_group and stream in self.streams and count > self.streams[stream].writes[number]
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

    def replay_problems(
        self,
        found: dict[Stream, list[int]],
        wanted: dict[Stream, set[int]] | None = None,
        trimmed: dict[Stream, set[int]] | None = None,
    ) -> list[str]:
        """Compare what a replay from the beginning gave: everything that was acknowledged, once, in its order.

        Args:
            wanted: What it had to give, if it was asked for earlier: see `replayable`.
            trimmed: What had been trimmed when it was asked for; all that was by default.
        """
        problems: list[str] = []
        wanted = self.replayable() if wanted is None else wanted
        for stream, sent in self.streams.items():
            numbers = found.get(stream, [])
            # Some of it may have been trimmed meanwhile.
            if lost := wanted.get(stream, set()) - sent.excused - set(numbers):
                problems.append(f"replay, {stream}: {len(lost)} acknowledged messages are missing, like {min(lost)}")
            gone = sent.trimmed if trimmed is None else trimmed.get(stream, set())
            if undone := gone & set(numbers):
                problems.append(f"replay, {stream}: {len(undone)} trimmed messages are there, like {min(undone)}")
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
        end = sent.count if subscriber.retained_before is None else subscriber.retained_before.get(stream, 0)
        if not at_least <= first < max(end, at_least + 1):
            what = f"the first value that came is {first}" if numbers else "none came"
            yield f"{at_least} was retained when it subscribed, {end} was not sent before a live message, but {what}"
    once = min(stream.qos, subscriber.qos) == 2
    most = 1 + subscriber.asked_again if sent.is_retained else 1
    again = [number for number, count in Counter(numbers).items() if count > most]
    if once and again:
        yield f"{len(again)} messages came more than once, the first is {min(again)}"
    if wrong_wills := sent.withdrawn & set(numbers):
        yield f"{len(wrong_wills)} wills came that had been withdrawn, the first is {min(wrong_wills)}"
    if not subscriber.is_group and not sent.is_delayed:
        # A repetition may come late; what comes for the first time may not.
        wrong = [
            (before, number)
            for before, number in pairwise(dict.fromkeys(numbers))
            if before > number and not _may_be_second_copy(subscriber, stream, sent, number)
        ]
        if wrong:
            yield f"{len(wrong)} messages came out of order: {wrong[0][1]} after {wrong[0][0]}"


def _may_be_second_copy(subscriber: Subscriber, stream: Stream, sent: Sent, number: int) -> bool:
    """Whether a message may have been stored before a subscription began, and once more, as a repetition, behind it."""
    return (
        stream.qos == 1
        and sent.writes[number] > 1
        and number < subscriber.owed_from.get(stream, 0)
        and number < subscriber.received[stream][0]
    )
