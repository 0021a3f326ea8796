"""Each promise that a bridge may break is found by the ledger, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.bridge.outages.ledger import Found, Ledger, Message

TOPIC = "plant/a"


def found(*offsets: int, topic: str = TOPIC) -> list[Found]:
    """Messages whose numbers are their offsets."""
    return [Found(Message(topic, offset), offset) for offset in offsets]


def ledger_of(count: int, poison: Sequence[int] = ()) -> Ledger:
    ledger = Ledger()
    for number in range(count):
        ledger.settle(ledger.send(TOPIC, is_poison=number in poison), is_taken=True)
    return ledger


def problems(
    ledger: Ledger, rows: Sequence[Found], letters: Sequence[Found] = (), *, end: int = 5, repeated: int = 0
) -> str:
    return "\n".join(ledger.problems(rows, letters, next_offset=end, most_repeated=repeated))


def test_what_arrives_once_and_in_order_is_no_problem() -> None:
    assert problems(ledger_of(5), found(0, 1, 2, 3, 4)) == ""
    assert problems(ledger_of(5, poison=[2]), found(0, 1, 3, 4), found(2)) == ""


def test_a_refused_message_need_not_arrive() -> None:
    ledger = ledger_of(2)
    ledger.settle(ledger.send(TOPIC), is_taken=False)
    assert problems(ledger, found(0, 1), end=2) == ""


@pytest.mark.parametrize("rows", [(0, 1, 3, 4), (0, 1, 2, 3), (1, 2, 3, 4)])
def test_what_is_lost_is_found(rows: tuple[int, ...]) -> None:
    said = problems(ledger_of(5), found(*rows))
    assert "1 of 5 acknowledged messages are nowhere" in said
    assert "went nowhere, the first is" in said


def test_a_record_of_the_queue_that_was_not_acknowledged_is_not_to_be_lost_either() -> None:
    ledger = ledger_of(4)
    ledger.send(TOPIC)
    assert problems(ledger, found(0, 1, 2, 3), end=4) == ""
    assert "1 of the queue's 5 records went nowhere, the first is 4" in problems(ledger, found(0, 1, 2, 3))


def test_repetitions_go_back_by_a_window_and_no_further() -> None:
    rows = found(0, 1, 2, 3, 2, 3, 4)
    assert problems(ledger_of(5), rows, repeated=2) == ""
    assert "offset 2 came after 3: 2 back, 1 are allowed" in problems(ledger_of(5), rows, repeated=1)
    assert "2 back, 0 are allowed" in problems(ledger_of(5), rows)


def test_a_wrong_order_is_found_whatever_may_be_repeated() -> None:
    assert "came after number 3" in problems(ledger_of(5), found(0, 1, 3, 2, 4), repeated=5)
    swapped = [*found(0, 1), Found(Message(TOPIC, 3), 2), Found(Message(TOPIC, 2), 3), *found(4)]
    assert "came after number 3" in problems(ledger_of(5), swapped)


def test_what_a_publisher_sent_again_is_no_wrong_order() -> None:
    rows = [*found(0, 1, 2), Found(Message(TOPIC, 1), 3), Found(Message(TOPIC, 2), 4)]
    assert problems(ledger_of(3), rows) == ""


def test_what_nobody_sent_is_found() -> None:
    assert "nobody sent these 1" in problems(ledger_of(4), found(0, 1, 2, 3, 4))
    assert "nobody sent these 1" in problems(ledger_of(4), [*found(0, 1, 2, 3), *found(4, topic="another")])


def test_dead_letters_are_exactly_those_that_the_sink_refuses() -> None:
    assert "1 dead letters are no poison" in problems(ledger_of(5), found(0, 1, 3, 4), found(2))
    assert "the sink has 1 that it refuses" in problems(ledger_of(5, poison=[2]), found(0, 1, 2, 3, 4))
    twice = problems(ledger_of(5, poison=[2]), found(0, 1, 3, 4), found(2, 2))
    assert "dead letters are there twice" in twice
