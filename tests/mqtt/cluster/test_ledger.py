"""The checker must be able to fail: histories that keep all promises pass, each kind of broken promise is found."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mqtt.cluster.ledger import LATE_S, Ledger, Stream

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


def test_messages_that_were_not_sent_are_found() -> None:
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
        self.receive(received)

    def receive(self, received: list[int]) -> None:
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
        ([6], "the first is 5"),
        ([1, 2, 3, 4, 5, 6], "was retained when it subscribed"),
        ([], "was retained when it subscribed"),
        ([2, 5, 6], "2 of 7 acknowledged messages did not come, the first is 3"),
        ([4, 6], "the first is 5"),
        ([2, 4, 3, 5, 6], "out of order"),
    ],
    ids=[
        "nor the next one",
        "stale value",
        "nothing",
        "hole behind what was retained",
        "live one",
        "older behind newer",
    ],
)
def test_a_late_subscriber_that_misses_a_value_is_found(received: list[int], sign: str) -> None:
    assert any(sign in problem for problem in LateSubscriber(received).ledger.problems())


def test_a_retained_value_that_was_replaced_before_it_was_read_is_not_required() -> None:
    late = LateSubscriber([5, 6])
    assert late.ledger.problems() == []
    assert late.ledger.missing() == 0


def test_a_retained_value_that_was_replaced_after_a_live_message_is_required() -> None:
    """What is retained goes out before anything live, so it had been read by then."""
    late = LateSubscriber([])
    other = Stream("q", "t", 1)
    late.ledger.receive("s", other, late.ledger.send(other))
    late.send()
    late.ledger.trim(AT_LEAST_ONCE, [5, 6])
    late.receive([7])
    assert any("was retained when it subscribed" in problem for problem in late.ledger.problems())


def test_the_wait_of_a_subscriber_that_takes_few_messages_is_one_in_which_nothing_came() -> None:
    now_s = 0.0
    ledger = Ledger(clock=lambda: now_s)
    for name, takes_few in (("s", False), ("slow", True)):
        ledger.subscribe(name, 1, takes_few=takes_few)
    for _ in range(4):
        ledger.acknowledge(ONCE, ledger.send(ONCE))
    waits: list[float] = []
    for number, came_s in enumerate((10.0, 20.0, 30.0, 70.0)):
        now_s = came_s
        for name in ledger.subscribers:
            ledger.receive(name, ONCE, number)
        waits.append(ledger.subscribers["slow"].longest_wait_s)
    assert waits == [10.0, 10.0, 10.0, 40.0]
    assert ledger.longest_wait() == (70.0, f"{ONCE} 3 to s")


@pytest.mark.parametrize(
    ("stream", "writes", "received", "is_right"),
    [
        (AT_LEAST_ONCE, 2, [1, 2, 0, 1, 2, 3], True),
        (AT_LEAST_ONCE, 1, [1, 2, 0, 3], False),
        (ONCE, 2, [1, 2, 0, 3], False),
        (AT_LEAST_ONCE, 2, [0, 2, 1, 3], False),
    ],
    ids=["sent twice", "sent once", "once", "no copy before the subscription"],
)
def test_a_late_subscriber_may_see_a_second_copy_first_of_what_was_stored_before_it(
    stream: Stream, writes: int, received: list[int], is_right: bool
) -> None:
    """Stored were 0, 1, 2, and all three once more, as their publisher had no answer; it began behind the first 0."""
    ledger = Ledger()
    for _ in range(3):
        ledger.send(stream)
    ledger.subscribe("s", 1)
    ledger.subscribed("s")
    ledger.send(stream)
    for number in range(4):
        for _ in range(writes):
            ledger.write(stream, number)
        ledger.acknowledge(stream, number)
    for number in received:
        ledger.receive("s", stream, number)
    assert (not any("out of order" in problem for problem in ledger.problems())) == is_right


@pytest.mark.parametrize(("asked_again", "count"), [(0, 2), (1, 2), (1, 3)])
def test_what_is_retained_comes_once_more_for_each_time_a_subscription_is_asked_for(
    asked_again: int, count: int
) -> None:
    ledger = Ledger()
    ledger.subscribe("s", 2)
    ledger.acknowledge(ONCE, ledger.send(ONCE, is_retained=True))
    for _ in range(asked_again):
        ledger.ask_again("s")
    for _ in range(count):
        ledger.receive("s", ONCE, 0)
    assert bool(ledger.problems()) == (count > 1 + asked_again)


def test_messages_sent_before_a_subscription_are_not_required() -> None:
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


def test_a_retained_message_that_is_stored_twice_is_a_repetition() -> None:
    """A lost answer of the store must not double what is retained either."""
    ledger = Ledger()
    ledger.subscribe("s", 1)
    number = ledger.send(AT_LEAST_ONCE, is_retained=True)
    ledger.write(AT_LEAST_ONCE, number)
    for _ in range(2):
        ledger.receive("s", AT_LEAST_ONCE, number, connection="c/1", dup=False)
    assert "came 2 times, it was sent 1 times" in ledger.repetitions()[0]


def clocked(*, expiry_s: int = 0) -> tuple[Ledger, list[float]]:
    """A ledger with one message that was acknowledged at second 0, and its clock."""
    now_s = [0.0]
    ledger = Ledger(clock=lambda: now_s[0])
    ledger.subscribe("s", 1)
    number = ledger.send(AT_LEAST_ONCE, expiry_s=expiry_s)
    ledger.write(AT_LEAST_ONCE, number)
    ledger.acknowledge(AT_LEAST_ONCE, number)
    return ledger, now_s


def test_a_message_that_comes_for_the_first_time_when_it_has_expired_is_found() -> None:
    ledger, now_s = clocked(expiry_s=2)
    assert ledger.problems() == []
    assert ledger.missing() == 0
    now_s[0] = 2 + LATE_S + 1
    ledger.receive("s", AT_LEAST_ONCE, 0, dup=True)
    assert ledger.problems() == []
    ledger.receive("s", AT_LEAST_ONCE, 0, dup=False)
    assert "0 came 6.0 s after it had expired" in ledger.problems()[0]


def test_what_is_written_again_expires_later() -> None:
    ledger, now_s = clocked(expiry_s=2)
    now_s[0] = 10
    ledger.write(AT_LEAST_ONCE, 0)
    ledger.receive("s", AT_LEAST_ONCE, 0, dup=False)
    assert ledger.problems() == []


def test_what_was_in_memory_need_not_come_once_the_server_has_died() -> None:
    ledger = Ledger()
    ledger.subscribe("s", 1)
    ledger.acknowledge(AT_LEAST_ONCE, ledger.send(AT_LEAST_ONCE))
    unanswered = ledger.send(AT_LEAST_ONCE)
    ledger.put_into_memory("t")
    ledger.acknowledge(AT_LEAST_ONCE, unanswered)
    ledger.acknowledge(AT_LEAST_ONCE, ledger.send(AT_LEAST_ONCE))
    ledger.put_into_files("t")
    ledger.acknowledge(AT_LEAST_ONCE, ledger.send(AT_LEAST_ONCE))
    assert ledger.missing() == 4
    ledger.lose_memory()
    assert ledger.missing() == 2
    assert "the first is 0" in ledger.problems()[0]


def test_messages_acknowledged_after_a_change_to_files_are_required_though_the_server_dies() -> None:
    """A change of mode that took no effect lost what was acknowledged after it."""
    ledger = Ledger()
    ledger.subscribe("s", 1)
    ledger.put_into_memory("t")
    ledger.put_into_files("t")
    ledger.acknowledge(AT_LEAST_ONCE, ledger.send(AT_LEAST_ONCE))
    ledger.lose_memory()
    assert "1 of 1 acknowledged messages did not come" in ledger.problems()[0]


def test_a_replay_owes_what_was_acknowledged_when_it_was_asked_for() -> None:
    ledger = ledger_of(ONCE, 4, {0, 1, 2}, [])
    wanted = ledger.replayable()
    ledger.acknowledge(ONCE, 3)
    assert ledger.replay_problems({ONCE: [0, 1, 2]}, wanted) == []
    assert "missing, like 1" in ledger.replay_problems({ONCE: [0, 2, 3]}, wanted)[0]
    assert "missing, like 3" in ledger.replay_problems({ONCE: [0, 1, 2]})[0]


def test_trimmed_messages_are_neither_required_nor_replayed() -> None:
    ledger = ledger_of(ONCE, 4, {0, 1, 2, 3}, [2, 3])
    ledger.trim(ONCE, {0, 1})
    assert ledger.problems() == []
    assert ledger.replay_problems({ONCE: [1, 2, 3]}) == []
    ledger.trimmed(ONCE, {0, 1})
    assert "1 trimmed messages are there, like 1" in ledger.replay_problems({ONCE: [1, 2, 3]})[0]
    assert ledger.replay_problems({ONCE: [2, 3]}) == []


def test_a_message_of_a_group_at_quality_2_that_two_members_get_is_named() -> None:
    ledger = Ledger()
    ledger.subscribe("g", 2, is_group=True)
    number = ledger.send(ONCE)
    ledger.acknowledge(ONCE, number)
    for member in ("first/1", "second/1"):
        ledger.receive("g", ONCE, number, connection=member, dup=False)
    assert "1 messages came more than once" in ledger.problems()[0]


def test_a_message_behind_one_that_cannot_be_encoded_and_is_skipped_is_named() -> None:
    assert "the first is 2" in ledger_of(ONCE, 4, {0, 1, 2, 3}, [0, 1, 3]).problems()[0]


def test_what_a_stored_position_passed_over_is_named_though_newer_messages_came() -> None:
    """A session whose stored position ran ahead of commits under way lost these at its next connection."""
    ledger = ledger_of(ONCE, 6, {0, 1, 2, 3, 4, 5}, [0, 1, 4, 5])
    assert ledger.missing() == 2
    assert "2 of 6 acknowledged messages did not come, the first is 2" in ledger.problems()[0]


def test_retained_messages_that_die_with_the_connection_of_a_subscriber_are_named() -> None:
    late = LateSubscriber([])
    assert any("2 was retained when it subscribed" in problem for problem in late.ledger.problems())


def test_what_is_retained_for_an_acknowledged_subscription_is_missing_until_something_of_the_topic_comes() -> None:
    ledger = Ledger()
    number = ledger.send(AT_LEAST_ONCE, is_retained=True)
    ledger.acknowledge(AT_LEAST_ONCE, number)
    ledger.subscribe("s", 1)
    ledger.subscribed("s")
    assert ledger.missing() == 1
    assert "0 was retained when it subscribed" in ledger.problems()[0]
    ledger.receive("s", AT_LEAST_ONCE, number)
    assert (ledger.missing(), ledger.problems()) == (0, [])


def test_a_delayed_message_that_is_published_twice_is_named() -> None:
    ledger = Ledger()
    ledger.subscribe("s", 1)
    number = ledger.send(AT_LEAST_ONCE, is_delayed=True)
    ledger.write(AT_LEAST_ONCE, number)
    for _ in range(2):
        ledger.receive("s", AT_LEAST_ONCE, number, connection="c/1", dup=False)
    assert "delayed message 0 came 2 times" in ledger.repetitions()[0]


def test_a_share_of_a_group_that_is_frozen_with_its_broker_is_named() -> None:
    """The longest wait is what the phase with frozen brokers compares with its bound."""
    ledger, now_s = clocked()
    now_s[0] = 100
    ledger.receive("s", AT_LEAST_ONCE, 0)
    assert ledger.longest_wait() == (100.0, f"{AT_LEAST_ONCE} 0 to s")


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


def ledger_with_will(*, comes: int) -> tuple[Ledger, int]:
    """A client has sent its will, which comes so many times to a subscriber at QoS 2."""
    ledger = Ledger()
    ledger.subscribe("s", 2)
    number = ledger.have_will(ONCE)
    for _ in range(comes):
        ledger.receive("s", ONCE, number)
    return ledger, number


@pytest.mark.parametrize("comes", [0, 1])
def test_a_will_of_which_it_is_not_known_whether_a_broker_has_it_may_come_or_not(comes: int) -> None:
    ledger, number = ledger_with_will(comes=comes)
    assert ledger.problems() == []
    assert ledger.missing() == 0
    assert ledger.unacknowledged() == 0
    assert ledger.has_come(ONCE, number) == bool(comes)


@pytest.mark.parametrize(
    ("comes", "sign"), [(0, "1 of 1 acknowledged messages did not come"), (1, ""), (2, "came more than once")]
)
def test_the_will_of_a_client_whose_connection_was_lost_comes_once(comes: int, sign: str) -> None:
    ledger, number = ledger_with_will(comes=comes)
    ledger.acknowledge(ONCE, number)
    assert [sign in problem for problem in ledger.problems()] == ([True] if sign else [])


@pytest.mark.parametrize("comes", [0, 1])
def test_a_will_that_was_withdrawn_does_not_come(comes: int) -> None:
    ledger, number = ledger_with_will(comes=comes)
    ledger.withdraw(ONCE, number)
    assert ["1 wills came that had been withdrawn" in problem for problem in ledger.problems()] == [True] * comes


def test_a_session_that_is_there_though_its_time_was_over_is_a_problem() -> None:
    ledger = Ledger()
    ledger.find_undead("c")
    assert "whose time was over" in ledger.problems()[0]
