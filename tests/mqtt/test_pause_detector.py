"""A broker that was frozen is distinguished from one that had much work."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from broker_adapter.mqtt.connection.services import MIN_PAUSE_S, PauseDetector


class Processor:
    """Time that a thread worked."""

    def __init__(self) -> None:
        self.worked_s = 0.0

    def __call__(self) -> float:
        return self.worked_s


async def test_a_process_that_was_stopped_knows_it_before_its_tasks_run(mock_clock: MockClock) -> None:
    detector = PauseDetector(Processor())
    stopped_at_s = trio.current_time()
    mock_clock.jump(MIN_PAUSE_S + 0.3)
    assert detector.has_ended_since(stopped_at_s)
    assert not detector.has_ended_since(trio.current_time())


async def test_a_process_that_only_waits_does_not_stand_still(autojump_clock: MockClock) -> None:
    detector = PauseDetector(Processor())
    async with trio.open_nursery() as tasks:
        tasks.start_soon(detector.run)
        await trio.sleep(10)
        assert not detector.has_ended_since(0)
        tasks.cancel_scope.cancel()


async def test_much_work_is_no_standstill(mock_clock: MockClock) -> None:
    processor = Processor()
    detector = PauseDetector(processor)
    processor.worked_s += 1.0
    mock_clock.jump(2.0)
    assert not detector.has_ended_since(0)
    processor.worked_s += 0.5
    mock_clock.jump(2.0)
    assert detector.has_ended_since(0)
