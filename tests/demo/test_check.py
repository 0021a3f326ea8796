"""The checker on constructed evidence: what it lets pass and what it must never let pass."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from demo.check import Found, Range, ShardEvidence, ShardResult, check_shard
from demo.ledger import Acknowledged, Published, Received, ReceivedGap
from shards.model import AckLevel

SHARD = "host/broker-a/cpu"
BEFORE_US, BACK_AT_US, AFTER_US = 100, 200, 300


def published(count: int) -> list[Published]:
    return [Published(SHARD, at, f"d{at}", 10) for at in range(count)]


def acknowledged(
    sequence: int, offset: int, level: AckLevel = AckLevel.DURABLE, at_us: int = BEFORE_US
) -> Acknowledged:
    return Acknowledged(SHARD, sequence, f"d{sequence}", offset, level, 1000, at_us)


def found(sequence: int, offset: int) -> Found:
    return Found(offset, f"d{sequence}", sequence)


def received(sequence: int, offset: int) -> Received:
    return Received(SHARD, offset, f"d{sequence}", 1000)


def file_shard(**changes: Any) -> ShardEvidence:
    """Three records, all durable, all there, all received."""
    evidence = ShardEvidence(
        name=SHARD,
        may_lose=False,
        start_offset=0,
        next_offset=3,
        published=published(3),
        acknowledged=[acknowledged(at, at) for at in range(3)],
        found=[found(at, at) for at in range(3)],
        gaps=[],
        received=[received(at, at) for at in range(3)],
        received_gaps=[],
        back_at_us=BACK_AT_US,
    )
    return attrs.evolve(evidence, **changes)


def memory_shard(**changes: Any) -> ShardEvidence:
    """Two records before the kill, of which the other broker got one; offsets reserved up to 9; one record after it."""
    evidence = file_shard(
        may_lose=True,
        next_offset=11,
        acknowledged=[
            acknowledged(0, 0, AckLevel.MEMORY),
            acknowledged(1, 1, AckLevel.MEMORY),
            acknowledged(2, 10, AckLevel.MEMORY, AFTER_US),
        ],
        found=[found(2, 10)],
        gaps=[Range(0, 10)],
        received=[received(0, 0), received(2, 10)],
        received_gaps=[ReceivedGap(SHARD, 1, 10)],
    )
    return attrs.evolve(evidence, **changes)


def broken(result: ShardResult) -> set[str]:
    return {line.partition(": ")[2] for line in result.broken}


def test_what_is_all_there_holds() -> None:
    result = check_shard(file_shard())

    assert result.broken == []
    assert (result.published, result.durable, result.read_back, result.received_live) == (3, 3, 3, 3)


def test_what_was_lost_from_memory_holds_when_it_is_shown_as_a_gap() -> None:
    result = check_shard(memory_shard())

    assert result.broken == []
    assert (result.memory, result.read_back, result.lost_memory, result.gaps) == (3, 1, 2, (Range(0, 10),))


def test_a_durable_record_that_is_missing_breaks_it() -> None:
    result = check_shard(file_shard(found=[found(0, 0), found(2, 2)]))

    assert result.missing_durable == 1
    assert broken(result) >= {"1 acknowledged as durable and missing"}


def test_a_gap_does_not_excuse_a_missing_durable_record() -> None:
    acks = [acknowledged(0, 0), acknowledged(1, 1, AckLevel.MEMORY), acknowledged(2, 10, AckLevel.MEMORY, AFTER_US)]

    assert broken(check_shard(memory_shard(acknowledged=acks))) == {"1 acknowledged as durable and missing"}


def test_a_durable_record_with_another_content_is_missing() -> None:
    other = Found(1, "other", 1)

    assert broken(check_shard(file_shard(found=[found(0, 0), other, found(2, 2)]))) == {
        "1 acknowledged as durable and missing",
        "1 stored and never published",
    }


def test_a_silent_loss_from_memory_breaks_it() -> None:
    result = check_shard(memory_shard(start_offset=10, gaps=[]))

    assert broken(result) == {"2 acknowledged as in memory and missing without a gap"}


def test_a_loss_after_the_server_was_back_has_no_excuse() -> None:
    acks = [
        acknowledged(0, 0, AckLevel.MEMORY),
        acknowledged(1, 1, AckLevel.MEMORY, AFTER_US),
        acknowledged(2, 10, AckLevel.MEMORY, AFTER_US),
    ]

    assert broken(check_shard(memory_shard(acknowledged=acks))) == {
        "1 acknowledged as in memory and missing without a gap"
    }


def test_a_gap_in_a_shard_that_was_never_in_memory_breaks_it() -> None:
    result = check_shard(file_shard(next_offset=5, gaps=[Range(3, 5)]))

    assert broken(result) == {"2 offsets that are neither a record nor a gap, or both"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"next_offset": 4, "found": [*file_shard().found, found(2, 3)]},
            {"1 stored twice", "out of order"},
        ),
        (
            {"acknowledged": [acknowledged(0, 0), acknowledged(1, 1), acknowledged(2, 1)]},
            {
                "1 acknowledged as durable and missing",
                "1 stored twice",
                "out of order",
                # Of two records at one offset the later ledger line counts, and nobody swore to the third.
                "2 received twice or wrongly",
            },
        ),
        (
            {"next_offset": 4, "found": [*file_shard().found, Found(3, "stranger", 9)]},
            {"1 stored and never published"},
        ),
        (
            {"next_offset": 4},
            {"1 offsets that are neither a record nor a gap, or both"},
        ),
        (
            {"acknowledged": [acknowledged(0, 0), acknowledged(1, 1)]},
            {"1 published and never acknowledged", "1 received twice or wrongly"},
        ),
        (
            {"found": [found(1, 0), found(0, 1), found(2, 2)]},
            {"2 acknowledged as durable and missing", "out of order"},
        ),
        (
            {"received": [received(0, 0), received(2, 2)]},
            {"1 not received by the other broker"},
        ),
        (
            {"received": [received(0, 0), received(1, 1), received(1, 1), received(2, 2)]},
            {"2 received twice or wrongly"},
        ),
        (
            {"received": [received(0, 0), received(2, 1), received(2, 2)]},
            {"1 not received by the other broker", "2 received twice or wrongly"},
        ),
    ],
    ids=[
        "a record twice",
        "an offset twice",
        "a stranger",
        "an offset of nothing",
        "no acknowledgement",
        "out of order",
        "not received",
        "received twice",
        "received wrongly",
    ],
)
def test_each_broken_promise_is_named(changes: dict[str, Any], line: set[str]) -> None:
    assert broken(check_shard(file_shard(**changes))) == line


def test_a_receiver_may_be_shown_the_gap_instead_of_a_lost_record_but_not_of_one_that_is_there() -> None:
    missed = memory_shard(received=[received(0, 0)], received_gaps=[ReceivedGap(SHARD, 1, 11)])

    assert broken(check_shard(missed)) == {"1 not received by the other broker"}


def test_a_record_that_was_delivered_lost_and_stored_again_is_no_double() -> None:
    again = memory_shard(
        published=published(2),
        acknowledged=[acknowledged(0, 0, AckLevel.MEMORY), acknowledged(1, 10, AckLevel.MEMORY, AFTER_US)],
        found=[found(1, 10)],
        received=[received(0, 0), received(1, 1), received(1, 10)],
        received_gaps=[ReceivedGap(SHARD, 2, 10)],
    )

    assert check_shard(again).broken == []


def test_an_acknowledgement_without_an_offset_is_found_by_its_content() -> None:
    acks = [acknowledged(0, 0), acknowledged(1, -1), acknowledged(2, 2)]

    assert check_shard(file_shard(acknowledged=acks)).broken == []
    assert check_shard(file_shard(acknowledged=acks, found=[found(0, 0), found(2, 2)])).missing_durable == 1
