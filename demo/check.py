"""What must hold at the end, shard by shard: the ledgers against what is there. Pure; reading happens elsewhere.

- *Durable*: a record acknowledged as durable is there, at its offset, with its content.
- *Memory*: one acknowledged as in memory is there too, or it was acknowledged before the server died and its offset
  lies in a gap that readers are shown. It is never lost silently, and its offset is never given to another record.
- *Once*: no content is there twice, and nothing is there that nobody published.
- *Order*: offsets and the publisher's own numbers rise together.
- *Delivery*: the other broker got every record once, with its content, or was shown the same gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import attrs

from demo.ledger import Acknowledged, Published, Received, ReceivedGap
from shards.model import AckLevel

CAUGHT_UP_AFTER_US = 250_000
"""A record that comes in later than this after its append was caught up on; the others were received live."""


@attrs.frozen(slots=True)
class Found:
    """A record as the checker read it back."""

    offset: int
    digest: str
    sequence: int


@attrs.frozen(slots=True)
class Range:
    """Offsets from ``first_offset`` up to, not including, ``next_offset``."""

    first_offset: int
    next_offset: int

    def __contains__(self, offset: int) -> bool:
        return self.first_offset <= offset < self.next_offset

    def __str__(self) -> str:
        return f"{self.first_offset:,}-{self.next_offset - 1:,}"


@attrs.frozen(slots=True, kw_only=True)
class ShardEvidence:
    """All that is known of one shard.

    Attributes:
        name: The shard.
        may_lose: It has been in memory mode, so it may have lost records with the server.
        start_offset: First offset of the shard, as the server says.
        next_offset: Offset after its last one.
        published: What was handed to the store, in order.
        acknowledged: What the store has acknowledged, in order.
        found: What was read back, in the order of reading.
        gaps: What the reader was told is lost.
        received: What the other broker received, in order.
        received_gaps: What the other broker was told is lost.
        back_at_us: When the server accepted again after its death; 0 if it never died.
    """

    name: str
    may_lose: bool
    start_offset: int
    next_offset: int
    published: Sequence[Published]
    acknowledged: Sequence[Acknowledged]
    found: Sequence[Found]
    gaps: Sequence[Range]
    received: Sequence[Received]
    received_gaps: Sequence[ReceivedGap]
    back_at_us: int


@attrs.frozen(slots=True, kw_only=True)
class ShardResult:
    """What came of one shard; everything from ``missing_durable`` on must be 0, and ``order_kept`` true.

    Attributes:
        lost_memory: Records acknowledged as in memory that are in a gap now.
        received_live: What the other broker received at once.
        received_late: What it caught up on.
        missing_durable: Acknowledged as durable, and not there as it was.
        missing_memory: Acknowledged as in memory, and gone without an excuse.
        unacknowledged: Published, and no word from the store.
        twice: Copies too many, and offsets that were given to two records.
        strangers: There, but never published.
        unaccounted: Offsets that are neither a record nor in a gap, or both.
        not_received: Not received by the other broker, though it is neither lost nor was it shown a gap.
        received_wrongly: Received twice, or not what was published.
    """

    name: str
    published: int
    durable: int
    memory: int
    read_back: int
    lost_memory: int
    gaps: tuple[Range, ...]
    received_live: int
    received_late: int
    missing_durable: int
    missing_memory: int
    unacknowledged: int
    twice: int
    strangers: int
    unaccounted: int
    not_received: int
    received_wrongly: int
    order_kept: bool

    @property
    def broken(self) -> list[str]:
        """The promises that did not hold, a line each."""
        counts = {
            "acknowledged as durable and missing": self.missing_durable,
            "acknowledged as in memory and missing without a gap": self.missing_memory,
            "published and never acknowledged": self.unacknowledged,
            "stored twice": self.twice,
            "stored and never published": self.strangers,
            "offsets that are neither a record nor a gap, or both": self.unaccounted,
            "not received by the other broker": self.not_received,
            "received twice or wrongly": self.received_wrongly,
        }
        lines = [f"{self.name}: {count:,} {what}" for what, count in counts.items() if count]
        if not self.order_kept:
            lines.append(f"{self.name}: out of order")
        return lines


def check_shard(evidence: ShardEvidence) -> ShardResult:
    """Compare the ledgers of one shard with what is there."""
    at_offset = {record.offset: record.digest for record in evidence.found}
    found_digests = Counter(record.digest for record in evidence.found)
    gaps = evidence.gaps if evidence.may_lose else ()

    def is_there(ack: Acknowledged) -> bool:
        return at_offset.get(ack.offset) == ack.digest if ack.offset >= 0 else ack.digest in found_digests

    def is_excused(ack: Acknowledged) -> bool:
        return ack.at_us < evidence.back_at_us and _lies_in(ack.offset, gaps)

    durable = [ack for ack in evidence.acknowledged if ack.level == AckLevel.DURABLE]
    memory = [ack for ack in evidence.acknowledged if ack.level != AckLevel.DURABLE]
    lost = [ack for ack in memory if not is_there(ack)]
    excused = [ack for ack in lost if is_excused(ack)]
    given = Counter(ack.offset for ack in evidence.acknowledged if ack.offset >= 0)
    published = {record.digest for record in evidence.published}
    late = sum(each.delay_us > CAUGHT_UP_AFTER_US for each in evidence.received)
    return ShardResult(
        name=evidence.name,
        published=len(evidence.published),
        durable=len(durable),
        memory=len(memory),
        read_back=len(evidence.found),
        lost_memory=len(excused),
        gaps=tuple(evidence.gaps),
        received_live=len(evidence.received) - late,
        received_late=late,
        missing_durable=sum(not is_there(ack) for ack in durable),
        missing_memory=len(lost) - len(excused),
        unacknowledged=len(published - {ack.digest for ack in evidence.acknowledged}),
        twice=_copies(found_digests) + _copies(given),
        strangers=sum(digest not in published for digest in found_digests),
        unaccounted=_unaccounted(evidence, gaps),
        not_received=_not_received(evidence),
        received_wrongly=_received_wrongly(evidence),
        order_kept=_is_rising([(record.offset, record.sequence) for record in evidence.found])
        and _is_rising([(ack.offset, ack.sequence) for ack in evidence.acknowledged if ack.offset >= 0]),
    )


def _copies(counts: Counter[str] | Counter[int]) -> int:
    return sum(count - 1 for count in counts.values())


def _lies_in(offset: int, ranges: Iterable[Range]) -> bool:
    return any(offset in each for each in ranges)


def _is_rising(places: Sequence[tuple[int, int]]) -> bool:
    return all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(places))


def _unaccounted(evidence: ShardEvidence, gaps: Iterable[Range]) -> int:
    """How many offsets of the shard are covered not at all or more than once."""
    covered = sorted(
        [(gap.first_offset, gap.next_offset) for gap in gaps]
        + [(record.offset, record.offset + 1) for record in evidence.found]
    )
    wrong = 0
    at = evidence.start_offset
    for first, following in covered:
        wrong += abs(first - at)
        at = following
    return wrong + abs(evidence.next_offset - at)


def _not_received(evidence: ShardEvidence) -> int:
    """Records that should have reached the other broker. Before a gap it may have got some of the records in it."""
    received = {each.digest for each in evidence.received}
    shown = [Range(gap.first_offset, gap.next_offset) for gap in evidence.received_gaps] if evidence.may_lose else []
    there = {record.digest for record in evidence.found}
    return sum(
        ack.digest not in received and (ack.digest in there or not _lies_in(ack.offset, shown))
        for ack in evidence.acknowledged
    )


def _received_wrongly(evidence: ShardEvidence) -> int:
    """Records that reached the other broker twice, out of order, or at an offset that belongs to another one.

    A record of a memory segment that the server had delivered but not yet acknowledged when it died is stored again, at
    another offset: its publisher knows the second one only, and a receiver has rightly seen both.
    """
    acknowledged = {ack.offset: ack.digest for ack in evidence.acknowledged if ack.offset >= 0}
    knows_all = not evidence.may_lose and all(ack.offset >= 0 for ack in evidence.acknowledged)
    published = {record.digest for record in evidence.published}
    wrong = 0
    last_offset = -1
    for each in evidence.received:
        expected = acknowledged.get(each.offset, "" if knows_all else each.digest)
        wrong += expected != each.digest or each.digest not in published or each.offset <= last_offset
        last_offset = max(last_offset, each.offset)
    return wrong + _copies(Counter(each.digest for each in evidence.received if each.offset in acknowledged))
