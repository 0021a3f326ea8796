"""The checker on constructed evidence: what it lets pass and what it must never let pass."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from demo.evidence.check import Found, Range, Seen, TopicEvidence, TopicResult, check_topic
from demo.evidence.ledger import Published, Received

TOPIC = "host/sensor-a/cpu"
BEGUN_US, KILLED_AT_US, BEFORE_US, AFTER_US = 50, 75, 100, 300


def published(count: int, *, unacknowledged: tuple[int, ...] = (), at_us: int = BEFORE_US) -> list[Published]:
    return [Published(f"d{at}", 10, 1.0, BEGUN_US, 0 if at in unacknowledged else at_us) for at in range(count)]


def found(*numbers: int) -> list[Found]:
    return [Found(offset, number, f"d{number}") for offset, number in enumerate(numbers)]


def received(*numbers: int) -> list[Received]:
    return [Received(number, f"d{number}", 1000) for number in numbers]


def evidence(qos: int = 2, **changes: Any) -> TopicEvidence:
    """Three messages, all acknowledged, stored, received by every subscriber, and replayed."""
    return attrs.evolve(
        TopicEvidence(
            name=TOPIC,
            qos=qos,
            is_stored=True,
            may_lose=False,
            published=published(3),
            found=found(0, 1, 2),
            gaps=[],
            seen={
                "watcher": Seen(received=received(0, 1, 2)),
                "group": Seen(received=received(1, 0, 2), shares=True),
                "replay": Seen(received=received(0, 1, 2), from_store=True),
            },
            is_sent_again=True,
            killed_at_us=KILLED_AT_US,
        ),
        **changes,
    )


def seen(**changes: Seen) -> dict[str, Seen]:
    return {**evidence().seen, **changes}


def broken(result: TopicResult) -> set[str]:
    return {line.partition(": ")[2] for line in result.broken}


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_all_there_holds(qos: int) -> None:
    result = check_topic(evidence(qos))

    assert result.broken == []
    assert (result.published, result.acknowledged, result.stored, result.stored_again) == (3, 3, 3, 0)
    assert {name: each.received for name, each in result.seen.items()} == {"watcher": 3, "group": 3, "replay": 3}
    assert result.lost_in_all == result.doubled_in_all == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledged_message_that_is_not_stored_is_lost(qos: int) -> None:
    assert "1 acknowledged and not in the store" in broken(check_topic(evidence(qos, found=found(0, 2))))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("name", ["watcher", "group", "replay"])
def test_a_stored_message_that_a_subscriber_lacks_is_lost(qos: int, name: str) -> None:
    lacking = seen(**{name: attrs.evolve(evidence().seen[name], received=received(0, 2))})
    result = check_topic(evidence(qos, seen=lacking))

    assert broken(result) == {f"1 not received by {name}"}
    assert result.lost_in_all == 1


def test_the_warehouse_must_have_even_what_memory_lost() -> None:
    """What came through a queue in files is compared with what was acknowledged, not with what the store still has."""
    stored = {"found": evidence().found[:1], "may_lose": True, "gaps": [Range(1, 3)], "killed_at_us": 1 << 62}
    whole = seen(warehouse=Seen(received=received(0, 1, 2), from_queue=True))
    lacking = seen(warehouse=Seen(received=received(0, 2), from_queue=True))

    assert "1 not received by warehouse" in broken(check_topic(attrs.evolve(evidence(seen=lacking), **stored)))
    assert "1 not received by warehouse" not in broken(check_topic(attrs.evolve(evidence(seen=whole), **stored)))


def test_a_copy_is_doubled_at_quality_2_and_counted_at_quality_1() -> None:
    twice = seen(watcher=Seen(received=received(0, 1, 1, 2)))

    assert broken(check_topic(evidence(2, seen=twice))) == {"1 received twice by watcher"}
    result = check_topic(evidence(1, seen=twice))
    assert result.broken == []
    assert (result.seen["watcher"].received, result.seen["watcher"].again) == (3, 1)


def test_a_copy_in_the_store_that_no_client_has_sent_again_is_doubled_at_quality_1() -> None:
    """A broker that stored each message of a batch twice went unnoticed."""
    result = check_topic(evidence(1, found=found(0, 1, 1, 2), is_sent_again=False))
    assert result.doubled == 1
    assert result.broken


def test_a_copy_in_the_store_is_doubled_at_quality_2_and_is_played_twice_at_quality_1() -> None:
    stored = found(0, 1, 1, 2)

    assert "1 stored twice" in broken(check_topic(evidence(2, found=stored)))
    played = seen(replay=Seen(received=received(0, 1, 1, 2), from_store=True))
    result = check_topic(evidence(1, found=stored, seen=played))
    assert result.broken == []
    assert result.stored_again == 1
    more = seen(replay=Seen(received=received(0, 0, 1, 1, 2), from_store=True))
    assert broken(check_topic(evidence(1, found=stored, seen=more))) == {"1 received twice by replay"}


def test_a_group_may_get_one_again_that_a_lost_member_left() -> None:
    again = seen(group=Seen(received=received(0, 1, 2, 0), shares=True))

    assert check_topic(evidence(2, seen=again)).broken == []


@pytest.mark.parametrize("qos", [1, 2])
def test_another_order_is_found_in_store_and_at_subscribers(qos: int) -> None:
    result = check_topic(evidence(qos, found=found(1, 0, 2), seen=seen(watcher=Seen(received=received(0, 2, 1)))))

    assert broken(result) == {"out of order in the store", "out of order in watcher"}


def test_a_repetition_after_a_lost_connection_is_no_other_order() -> None:
    again = seen(watcher=Seen(received=received(0, 1, 0, 1, 2)))

    assert check_topic(evidence(1, seen=again)).broken == []


def test_messages_that_were_not_published_are_found() -> None:
    changed = [Found(0, 0, "d0"), Found(1, 1, "other"), Found(2, 2, "d2")]
    unknown = seen(watcher=Seen(received=[*received(0, 1, 2), Received(-1, "x", 0), Received(7, "d7", 0)]))
    result = check_topic(evidence(1, found=changed, seen=unknown))

    assert "1 stored and never published" in broken(result)
    assert "2 received by watcher and never published" in broken(result)


def test_a_publish_without_an_answer_is_reported() -> None:
    result = check_topic(evidence(published=published(3, unacknowledged=(1,))))

    assert broken(result) == {"1 published and never acknowledged"}


def memory(**changes: Any) -> TopicEvidence:
    """Of three messages the first two went with the server, one of which no subscriber had received."""
    there = Seen(received=received(0, 2))
    return evidence(
        1,
        may_lose=True,
        published=[*published(2), *published(3, at_us=AFTER_US)[2:]],
        found=[Found(10, 2, "d2")],
        gaps=[Range(0, 10)],
        seen={"watcher": there, "replay": Seen(received=received(2), from_store=True)},
        **changes,
    )


def test_what_was_in_memory_may_go_with_the_server_if_a_gap_is_shown() -> None:
    result = check_topic(memory())

    assert result.broken == []
    assert (result.lost_from_memory, result.stored) == (2, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"may_lose": False},
        {"gaps": []},
        {"killed_at_us": 0},
        {"killed_at_us": BEGUN_US},
    ],
)
def test_nothing_else_excuses_a_loss(changes: dict[str, Any]) -> None:
    assert "2 acknowledged and not in the store" in broken(check_topic(attrs.evolve(memory(), **changes)))


def test_messages_that_are_not_kept_may_be_lost_but_come_at_most_once() -> None:
    kept = {"is_stored": False, "found": [], "published": published(3, unacknowledged=(0, 1, 2))}
    assert check_topic(evidence(0, **kept, seen={"watcher": Seen(received=received(0, 2))})).broken == []
    twice = check_topic(evidence(0, **kept, seen={"watcher": Seen(received=received(0, 0))}))
    assert broken(twice) == {"1 received twice by watcher"}
