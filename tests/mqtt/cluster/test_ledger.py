"""The checker must be able to fail: histories that keep all promises pass, each kind of broken promise is found."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mqtt.cluster.ledger import Ledger, Stream

ONCE = Stream("p", "t", 2)
AT_LEAST_ONCE = Stream("p", "t", 1)


def ledger_of(stream: Stream, sent: int, acknowledged: set[int], received: list[int], *, qos: int = 2) -> Ledger:
    ledger = Ledger()
    ledger.subscribe("s", qos)
    for _ in range(sent):
        ledger.send(stream)
    for number in acknowledged:
        ledger.acknowledge(stream, number)
    for number in received:
        ledger.receive("s", stream, number)
    return ledger


@attrs.frozen
class History:
    """A stream on which everything went as promised."""

    stream: Stream
    sent: int
    acknowledged: set[int]
    received: list[int]

    def ledger(self, received: list[int] | None = None) -> Ledger:
        return ledger_of(self.stream, self.sent, self.acknowledged, self.received if received is None else received)


@st.composite
def histories(draw: st.DrawFn, *, qos: int | None = None) -> History:
    stream = draw(st.sampled_from([ONCE, AT_LEAST_ONCE] if qos is None else [Stream("p", "t", qos)]))
    sent = draw(st.integers(min_value=2, max_value=30))
    lost = draw(st.sets(st.integers(min_value=0, max_value=sent - 1), max_size=sent - 2))
    received = [number for number in range(sent) if number not in lost]
    acknowledged = set(draw(st.lists(st.sampled_from(received), min_size=2, unique=True)))
    if stream.qos == 1:
        for _ in range(draw(st.integers(min_value=0, max_value=3))):
            # A connection was lost: some of what had come comes again, in its order, before what is next.
            end = draw(st.integers(min_value=1, max_value=len(received)))
            start = draw(st.integers(min_value=0, max_value=end - 1))
            received[end:end] = received[start:end]
    return History(stream, sent, acknowledged, received)


@given(histories())
def test_a_history_that_keeps_all_promises_passes(history: History) -> None:
    ledger = history.ledger()
    assert ledger.problems() == []
    assert ledger.missing() == 0
    assert ledger.unacknowledged() == history.sent - len(history.acknowledged)


@given(histories(), st.data())
def test_a_lost_message_is_found(history: History, data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(sorted(history.acknowledged)))
    ledger = history.ledger([number for number in history.received if number != lost])
    assert ledger.missing() == 1
    [problem] = ledger.problems()
    assert f"the first is {lost}" in problem
    assert "did not come" in problem


@given(histories(qos=2), st.data())
def test_a_doubled_message_is_found_at_quality_2(history: History, data: st.DataObject) -> None:
    place = data.draw(st.integers(min_value=0, max_value=len(history.received) - 1))
    again = [*history.received[: place + 1], history.received[place], *history.received[place + 1 :]]
    [problem] = history.ledger(again).problems()
    assert "more than once" in problem
    # The same history is right for a subscription that asked for QoS 1 only.
    assert ledger_of(history.stream, history.sent, history.acknowledged, again, qos=1).problems() == []


@given(histories(), st.data())
def test_a_changed_order_is_found(history: History, data: st.DataObject) -> None:
    first_receipts = list(dict.fromkeys(history.received))
    place = data.draw(st.integers(min_value=0, max_value=len(first_receipts) - 2))
    first_receipts[place : place + 2] = reversed(first_receipts[place : place + 2])
    [problem] = history.ledger(first_receipts).problems()
    assert "out of order" in problem


def test_what_nobody_sent_is_found() -> None:
    assert "no client sent this" in ledger_of(ONCE, 3, {0}, [0, 3]).problems()[0]
    ledger = ledger_of(ONCE, 3, {0}, [0])
    ledger.receive("s", AT_LEAST_ONCE, 0)
    assert "no client sent this" in ledger.problems()[0]


def test_lost_sessions_and_refusals_are_problems() -> None:
    ledger = ledger_of(ONCE, 1, {0}, [0])
    ledger.lose_session("c")
    ledger.refuse("p")
    assert len(ledger.problems()) == 2


def test_a_group_gets_everything_in_any_order() -> None:
    ledger = Ledger()
    ledger.subscribe("g", 1, is_group=True)
    for number in range(3):
        ledger.send(AT_LEAST_ONCE)
        ledger.acknowledge(AT_LEAST_ONCE, number)
    for number in (2, 0, 2):
        ledger.receive("g", AT_LEAST_ONCE, number)
    [problem] = ledger.problems()
    assert "1 of 3 acknowledged messages did not come" in problem
    ledger.receive("g", AT_LEAST_ONCE, 1)
    assert ledger.problems() == []


@pytest.mark.parametrize(
    ("value", "is_right"),
    [
        ((AT_LEAST_ONCE, 2), True),
        ((AT_LEAST_ONCE, 3), True),
        ((AT_LEAST_ONCE, 4), False),
        ((AT_LEAST_ONCE, 1), False),
        ((ONCE, 2), False),
        (None, False),
    ],
)
def test_the_retained_value_is_the_last_acknowledged_or_a_later_one(
    value: tuple[Stream, int] | None, is_right: bool
) -> None:
    ledger = Ledger()
    for _ in range(4):
        ledger.send(AT_LEAST_ONCE, is_retained=True)
    for number in range(3):
        ledger.acknowledge(AT_LEAST_ONCE, number)
    assert (ledger.retained_problems({"t": value}) == []) is is_right


class LateSubscriber:
    """A topic that retains, and a subscription to it that comes when some of its values are stored.

    Five values were sent before SUBACK, of which 0 to 2 were acknowledged before SUBSCRIBE; 5 and 6 came after it.
    """

    def __init__(self, received: list[int]) -> None:
        self.ledger = Ledger()
        for _ in range(3):
            self.send()
        self.ledger.subscribe("s", 1, prefix="t")
        for _ in range(2):
            self.send()
        self.ledger.subscribed("s")
        for _ in range(2):
            self.send()
        for number in received:
            self.ledger.receive("s", AT_LEAST_ONCE, number)

    def send(self) -> None:
        self.ledger.acknowledge(AT_LEAST_ONCE, self.ledger.send(AT_LEAST_ONCE, is_retained=True))


@pytest.mark.parametrize("first", [2, 3, 4])
def test_a_late_subscriber_may_get_any_value_retained_while_it_subscribed(first: int) -> None:
    late = LateSubscriber(list(range(first, 7)))
    assert late.ledger.problems() == []
    assert late.ledger.missing() == 0


@pytest.mark.parametrize(
    ("received", "sign"),
    [
        ([5, 6], "was retained when it subscribed"),
        ([1, 2, 3, 4, 5, 6], "was retained when it subscribed"),
        ([], "was retained when it subscribed"),
        ([2, 5, 6], "2 of 7 acknowledged messages did not come, the first is 3"),
        ([4, 6], "the first is 5"),
        ([2, 4, 3, 5, 6], "out of order"),
    ],
    ids=["neither copy", "stale value", "nothing", "hole behind what was retained", "live one", "older behind newer"],
)
def test_a_late_subscriber_that_misses_a_value_is_found(received: list[int], sign: str) -> None:
    assert any(sign in problem for problem in LateSubscriber(received).ledger.problems())


def test_what_was_sent_before_a_subscription_is_not_owed_to_it() -> None:
    ledger = Ledger()
    ledger.acknowledge(AT_LEAST_ONCE, ledger.send(AT_LEAST_ONCE))
    ledger.subscribe("s", 1)
    ledger.acknowledge(AT_LEAST_ONCE, ledger.send(AT_LEAST_ONCE))
    ledger.subscribed("s")
    assert ledger.problems() == []
    ledger.acknowledge(AT_LEAST_ONCE, ledger.send(AT_LEAST_ONCE))
    assert "the first is 2" in ledger.problems()[0]


def test_a_message_that_comes_unmarked_more_often_than_it_was_sent_is_a_repetition() -> None:
    ledger = Ledger()
    ledger.subscribe("s", 1)
    number = ledger.send(AT_LEAST_ONCE, is_delayed=True)
    ledger.write(AT_LEAST_ONCE, number)
    ledger.receive("s", AT_LEAST_ONCE, number, connection="c/1", dup=False)
    ledger.receive("s", AT_LEAST_ONCE, number, connection="c/1", dup=True)
    ledger.receive("s", AT_LEAST_ONCE, number, connection="c/2", dup=False)
    assert ledger.repetitions() == []
    ledger.receive("s", AT_LEAST_ONCE, number, connection="c/1", dup=False)
    assert "came 2 times, it was sent 1 times" in ledger.repetitions()[0]
    ledger.write(AT_LEAST_ONCE, number)
    assert ledger.repetitions() == []


def test_the_longest_wait_counts_from_the_acknowledgement_to_the_first_arrival() -> None:
    now_s = [0.0]
    ledger = Ledger(clock=lambda: now_s[0])
    ledger.subscribe("s", 1)
    for number in range(2):
        ledger.acknowledge(AT_LEAST_ONCE, ledger.send(AT_LEAST_ONCE))
        now_s[0] += 3
        ledger.receive("s", AT_LEAST_ONCE, number)
    now_s[0] += 100
    ledger.receive("s", AT_LEAST_ONCE, 1)
    assert ledger.longest_wait()[0] == 3


@pytest.mark.parametrize(
    ("found", "sign"),
    [([0, 1, 2], ""), ([0, 2], "missing"), ([0, 2, 1], "out of order"), ([0, 1, 1, 2], "more than once")],
)
def test_a_replay_gives_what_was_acknowledged_once_and_in_order(found: list[int], sign: str) -> None:
    ledger = ledger_of(ONCE, 3, {0, 1, 2}, [])
    problems = ledger.replay_problems({ONCE: found})
    assert [sign in problem for problem in problems] == ([True] if sign else [])
