"""Which message a broker ends connections over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.sinks.mqtt.reasons import PoisonMessageDetector


def test_a_message_is_to_blame_that_was_first_three_times_and_alone_at_last() -> None:
    detector = PoisonMessageDetector()
    assert not detector.must_go_alone(4)
    assert not detector.closed([4, 5, 6])
    assert detector.must_go_alone(6)
    assert not detector.must_go_alone(7)
    assert not detector.closed([4])
    assert detector.closed([4])


def test_a_network_that_fails_elsewhere_each_time_makes_no_record_suspect() -> None:
    detector = PoisonMessageDetector()
    for offset in (3, 4, 3, 4, 5, 5, 6):
        assert not detector.closed([offset])


def test_connections_that_end_with_nothing_in_flight_make_no_record_suspect() -> None:
    detector = PoisonMessageDetector()
    for _ in range(10):
        assert not detector.closed([])


@given(st.integers(0, 30), st.integers(1, 30), st.integers(1, 8))
def test_a_poisonous_message_is_found_wherever_it_is(poison: int, batch: int, window: int) -> None:
    """A broker that closes on one message, and whose answers to what was sent before it in the same go are lost."""
    detector, confirmed, tries = PoisonMessageDetector(), 0, 0
    while confirmed <= poison:
        tries += 1
        assert tries < 10
        at = confirmed
        while True:
            end = at + 1
            while end < at + window and end < confirmed + batch and not detector.must_go_alone(end):
                end += 1
            under_way = list(range(at, end if not detector.must_go_alone(at) else at + 1))
            if poison in under_way:
                if detector.closed(under_way):
                    assert under_way == [poison]
                    return
                confirmed = under_way[0]
                break
            at = under_way[-1] + 1
