"""The checks at the end, topic by topic: the clients' ledgers against each other and against the store. Pure.

- *Stored*: acknowledged messages are in the store, with their content. Messages of a topic in memory mode that were
  lost with the server are excused, if they were published before the server died and readers get a gap instead.
- *Brought*: the warehouse has all acknowledged messages, despite all outages.
- *Delivered*: every subscriber got all messages in the store, despite all kills and absences.
- *Once*: at QoS 2 nothing is stored or delivered twice. At QoS 1 duplicates are allowed where a client lost its
  connection and sent again; they are counted.
- *Order*: messages come in the publisher's order, repetitions excepted.
- *Nothing else*: no subscriber got, and the store does not have, a message that was not published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs

from demo.evidence.ledger import Published, Received


@attrs.frozen(slots=True)
class Found:
    """A record as the checker read it back."""

    offset: int
    number: int
    digest: str


@attrs.frozen(slots=True)
class Range:
    """Offsets from ``first_offset`` up to, not including, ``next_offset``."""

    first_offset: int
    next_offset: int

    def __str__(self) -> str:
        return f"{self.first_offset:,}-{self.next_offset - 1:,}"


@attrs.frozen(slots=True, kw_only=True)
class Seen:
    """The messages of a topic that one subscriber received.

    Attributes:
        received: In order of receipt.
        shares: Members of a group share the messages, so there is no order, and after the death of a member another one
            may get its messages again.
        from_store: They were replayed from the store: they must be exactly the stored messages.
        from_queue: They came through a durable queue: they must be all acknowledged messages, even those that the store
            has lost.
    """

    received: Sequence[Received]
    shares: bool = False
    from_store: bool = False
    from_queue: bool = False


@attrs.frozen(slots=True, kw_only=True)
class TopicEvidence:
    """All observations about one topic.

    Attributes:
        qos: QoS of all its messages.
        is_stored: Whether its messages are kept at all.
        may_lose: Its shard has been in memory mode, so it may have lost records with the server.
        published: In order; a message's number is its index.
        found: What was read back, in the order of reading.
        gaps: Gaps that the reader got.
        seen: By subscriber.
        is_sent_again: A publisher has lost its connection, and sent again what was not acknowledged: at QoS 1 brokers
            may store that twice.
        killed_at_us: When the server was killed; 0 if it never was. Messages published before may have been in its
            memory, even if the acknowledgement, which also waited for the bridge's queue, came from the new server.
    """

    name: str
    qos: int
    is_stored: bool
    may_lose: bool
    published: Sequence[Published]
    found: Sequence[Found]
    gaps: Sequence[Range]
    seen: Mapping[str, Seen]
    is_sent_again: bool
    killed_at_us: int


@attrs.frozen(slots=True, kw_only=True)
class SeenResult:
    """Result of one subscriber's messages of a topic.

    Attributes:
        received: Messages that came, each counted once.
        again: Copies beyond the first.
        missing: Must be 0: in the store, and not received.
        doubled: Must be 0: copies at a QoS that forbids them.
        unpublished: Must be 0: received, and not published.
        in_order: Must be true.
    """

    received: int
    again: int
    missing: int
    doubled: int
    unpublished: int
    in_order: bool


@attrs.frozen(slots=True, kw_only=True)
class TopicResult:
    """Result of one topic.

    Attributes:
        stored: Records in the store, each message counted once.
        stored_again: Copies beyond the first.
        lost_from_memory: Acknowledged, in memory mode, and lost with the server.
        lost: Must be 0: acknowledged, and not in the store without an excuse.
        unacknowledged: Must be 0: published, and not answered by a broker.
        doubled: Must be 0: copies in the store at QoS 2, and at QoS 1 if no client had sent again.
        unpublished: Must be 0: in the store, and not published.
        in_order: Must be true: the store's records are in order.
        seen: By subscriber.
    """

    name: str
    qos: int
    is_stored: bool
    published: int
    acknowledged: int
    stored: int
    stored_again: int
    lost_from_memory: int
    gaps: tuple[Range, ...]
    lost: int
    unacknowledged: int
    doubled: int
    unpublished: int
    in_order: bool
    seen: Mapping[str, SeenResult]

    @property
    def lost_in_all(self) -> int:
        """Messages missing in the store and at all subscribers."""
        return self.lost + sum(each.missing for each in self.seen.values())

    @property
    def doubled_in_all(self) -> int:
        """Copies too many in the store and at all subscribers."""
        return self.doubled + sum(each.doubled for each in self.seen.values())

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept, a line each."""
        counts = {
            "acknowledged and not in the store": self.lost,
            "published and never acknowledged": self.unacknowledged,
            "stored twice": self.doubled,
            "stored and never published": self.unpublished,
        }
        for name, each in self.seen.items():
            counts |= {
                f"not received by {name}": each.missing,
                f"received twice by {name}": each.doubled,
                f"received by {name} and never published": each.unpublished,
            }
        lines = [f"{self.name}: {count:,} {what}" for what, count in counts.items() if count]
        disordered = [] if self.in_order else ["the store"]
        disordered += [name for name, each in self.seen.items() if not each.in_order]
        return lines + [f"{self.name}: out of order in {where}" for where in disordered]


def check_topic(evidence: TopicEvidence) -> TopicResult:
    """Compare the ledgers of one topic with each other and with the store."""
    acknowledged = {number for number, each in enumerate(evidence.published) if each.acknowledged_at_us}
    stored = Counter(record.number for record in evidence.found)
    absent = acknowledged.difference(stored) if evidence.is_stored else set()
    excused = {number for number in absent if _is_excused(evidence, number)}
    copies = stored.total() - len(stored)
    return TopicResult(
        name=evidence.name,
        qos=evidence.qos,
        is_stored=evidence.is_stored,
        published=len(evidence.published),
        acknowledged=len(acknowledged),
        stored=len(stored),
        stored_again=copies,
        lost_from_memory=len(excused),
        gaps=tuple(evidence.gaps),
        lost=len(absent) - len(excused),
        unacknowledged=len(evidence.published) - len(acknowledged) if evidence.qos else 0,
        doubled=copies if evidence.qos == 2 or (evidence.qos == 1 and not evidence.is_sent_again) else 0,
        unpublished=_unpublished(evidence.published, evidence.found),
        in_order=_is_in_order([record.number for record in evidence.found]),
        seen={name: _check_seen(evidence, acknowledged, stored, seen) for name, seen in evidence.seen.items()},
    )


def _check_seen(evidence: TopicEvidence, acknowledged: set[int], stored: Counter[int], seen: Seen) -> SeenResult:
    numbers = [each.number for each in seen.received]
    received = Counter(numbers)
    again = received.total() - len(received)
    must_be_once = evidence.qos != 1 and not seen.shares
    if seen.from_store:
        # A record that is stored twice is replayed twice.
        doubled = (received - stored).total()
        again = doubled
    else:
        doubled = again if must_be_once else 0
    due = acknowledged if seen.from_queue else stored.keys()
    return SeenResult(
        received=len(received),
        again=again,
        missing=len(due - received.keys()) if evidence.qos else 0,
        doubled=doubled,
        unpublished=_unpublished(evidence.published, seen.received),
        in_order=seen.shares or _is_in_order(numbers),
    )


def _is_excused(evidence: TopicEvidence, number: int) -> bool:
    is_older = evidence.published[number].begun_at_us < evidence.killed_at_us
    return evidence.may_lose and bool(evidence.gaps) and is_older


def _unpublished(published: Sequence[Published], others: Sequence[Found] | Sequence[Received]) -> int:
    return sum(not 0 <= each.number < len(published) or published[each.number].digest != each.digest for each in others)


def _is_in_order(numbers: Sequence[int]) -> bool:
    """Whether the numbers rise, ignoring repetitions."""
    return all(one < two for one, two in pairwise(dict.fromkeys(numbers)))
