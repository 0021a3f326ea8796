"""The checks of several servers and of retained messages, on constructed evidence, and pauses of acknowledgements."""

from __future__ import annotations

import pytest

from demo.evidence.agreement import check_retained, disagreements
from demo.evidence.check import Found
from demo.evidence.ledger import Published, PublisherLedger
from tests.demo.test_check import TOPIC, found, published, received

OTHER = "host/sensor-b/disk"


def test_servers_that_have_the_same_agree() -> None:
    content = {TOPIC: found(0, 1, 2), OTHER: found(0)}

    assert disagreements({"a": content, "b": {**content}, "c": {TOPIC: found(0, 1, 2), OTHER: found(0)}}) == []


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (found(0, 1), "c has 2 records and a has 3; they differ from record 2 on"),
        (found(0, 1, 2, 3), "c has 4 records and a has 3; they differ from record 3 on"),
        (found(0, 2, 1), "c has 3 records and a has 3; they differ from record 1 on"),
        ([*found(0, 1), Found(2, 2, "other")], "c has 3 records and a has 3; they differ from record 2 on"),
        ([*found(0, 1), Found(3, 2, "d2")], "c has 3 records and a has 3; they differ from record 2 on"),
        ([], "c has 0 records and a has 3; they differ from record 0 on"),
    ],
)
def test_a_server_that_has_something_else_is_reported(other: list[Found], line: str) -> None:
    content = {TOPIC: found(0, 1, 2)}

    assert disagreements({"a": content, "b": content, "c": {TOPIC: other}}) == [f"{TOPIC}: {line}"]


def test_a_topic_that_one_server_lacks_or_alone_has_is_reported() -> None:
    lines = disagreements({"a": {TOPIC: found(0)}, "b": {OTHER: found(0)}})

    assert [line.partition(":")[0] for line in lines] == [TOPIC, OTHER]


def test_the_last_message_of_a_topic_is_the_retained_one() -> None:
    result = check_retained(TOPIC, published(3), {"one": received(2), "two": received(2)}, is_retained=True)

    assert (result.number, result.wrong, result.broken) == (2, [], [])


@pytest.mark.parametrize(
    ("numbers", "given"), [((), "nothing"), ((1,), "[1]"), ((2, 2), "[2, 2]"), ((1, 2), "[1, 2]"), ((-1,), "[-1]")]
)
def test_any_other_retained_message_is_reported(numbers: tuple[int, ...], given: str) -> None:
    result = check_retained(TOPIC, published(3), {"one": received(2), "two": received(*numbers)}, is_retained=True)

    assert result.broken == [f"{TOPIC}: two gave {given} as the retained message; it is message 2, the last one"]


def test_a_retained_message_with_other_content_is_reported() -> None:
    others = [Published("other", 10, 1.0, 50, 100) for _ in range(3)]

    assert check_retained(TOPIC, others, {"one": received(2)}, is_retained=True).wrong == ["one"]


def test_a_topic_of_which_nothing_is_retained_gives_nothing() -> None:
    assert check_retained(TOPIC, published(3), {"one": []}, is_retained=False).broken == []
    (line,) = check_retained(TOPIC, published(3), {"one": received(2)}, is_retained=False).broken
    assert line == f"{TOPIC}: one gave [2] as the retained message; it is none"


def ledger_of(*acknowledged_at_us: int) -> PublisherLedger:
    messages = [Published(f"d{at}", 10, 1.0, 1, at) for at in acknowledged_at_us]
    # Acknowledgements of several topics, and of QoS 1 and 2, do not come in the order of the topics.
    return PublisherLedger({TOPIC: messages[::2], OTHER: messages[1::2]})


@pytest.mark.parametrize(
    ("acknowledged_at_us", "pause_us"),
    [
        ((100, 210, 220, 900), 110),  # from the last one before to the first one after
        ((100, 120, 150, 210), 60),  # one that was under way
        ((0, 100, 210, 0), 110),  # 0: no acknowledgement
        ((1, 90, 105, 205, 210, 2_000), 100),  # earlier and later pauses are others
        ((100,), 0),
        ((), 0),
    ],
)
def test_the_pause_of_a_takeover_is_between_two_acknowledgements(
    acknowledged_at_us: tuple[int, ...], pause_us: int
) -> None:
    assert ledger_of(*acknowledged_at_us).longest_pause_us(since_us=101, until_us=210) == pause_us
