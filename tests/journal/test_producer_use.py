"""Which producers may still send again what they have sent."""

from __future__ import annotations

import pytest

from journal.engine.state.producer_use import RETURNS_WITHIN_S, ProducerUse
from shards.errors import StaleEpochError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def started() -> tuple[ProducerUse, Clock]:
    clock = Clock()
    use = ProducerUse(clock)
    clock.now = RETURNS_WITHIN_S
    return use, clock


def test_after_a_start_every_producer_may_return_for_a_while() -> None:
    clock = Clock()
    use = ProducerUse(clock)
    assert use.may_return(1)
    assert not use.is_used(1)
    clock.now = RETURNS_WITHIN_S
    assert not use.may_return(1)


def test_a_producer_is_used_as_long_as_its_connection_is_open_and_a_while_longer() -> None:
    use, clock = started()
    use.take(1, 1, 4)
    clock.now += 100 * RETURNS_WITHIN_S
    assert use.may_return(1)
    use.disconnected(4)
    clock.now += RETURNS_WITHIN_S - 1
    use.forget_left()
    assert use.may_return(1)
    clock.now += 1
    use.forget_left()
    assert not use.may_return(1)
    use.take(1, 1, 5)
    assert use.may_return(1)


def test_an_older_connection_that_closes_takes_nothing_from_the_newer_one() -> None:
    use, clock = started()
    use.take(1, 1, 4)
    use.take(1, 1, 5)
    use.disconnected(4)
    clock.now += 2 * RETURNS_WITHIN_S
    assert use.is_used(1)


def test_an_older_connection_is_refused_even_when_the_newer_one_left_long_ago() -> None:
    use, clock = started()
    use.take(1, 1, 5)
    use.disconnected(5)
    clock.now += 2 * RETURNS_WITHIN_S
    use.forget_left()
    with pytest.raises(StaleEpochError, match="newer connection"):
        use.take(1, 1, 4)
    use.take(1, 2, 4)
    assert use.owners == {1: 4}


def test_what_sends_inside_the_process_is_used_for_as_long_as_that_runs() -> None:
    use, clock = started()
    use.take(1, 1, 0)
    clock.now += 100 * RETURNS_WITHIN_S
    assert use.is_used(1)
    use.forget(1)
    assert not use.is_used(1)
