"""A publish that is not acknowledged for long is named in the log, with what it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker_adapter.mqtt.publish.publish_watch import STUCK_S, PublishWatch
from broker_adapter.mqtt.session import Session
from broker_adapter.mqtt_codec import Version
from tests.mqtt.test_publish_pipeline import Bench, bench, received

__all__ = ["bench"]

pytestmark = pytest.mark.trio


class Watched:
    """One session with publishes, and what watches it."""

    def __init__(self, bench: Bench) -> None:
        self.watch = PublishWatch()
        self.session = Session("sensor", 1, Version.V5, 0, publishes=bench.inbound)

    def look(self, now_s: float) -> list[Any]:
        """What is logged by a look at this time."""
        with capture_logs() as logs:
            self.watch.look([self.session], now_s)
        return logs


async def test_the_oldest_publish_is_measured_and_logged_once_a_minute(bench: Bench) -> None:
    watched = Watched(bench)
    assert watched.look(0.0) == []
    bench.inbound.submit([received(1), received(2)])
    await wait_all_tasks_blocked()
    assert watched.look(100.0) == []
    assert watched.look(100.0 + STUCK_S - 1) == []
    assert watched.watch.oldest_s == STUCK_S - 1
    (entry,) = watched.look(100.0 + STUCK_S)
    assert (entry["client"], entry["for_s"]) == ("sensor", STUCK_S)
    assert entry["waits_for"] == "the answer to its append; 'a': state of a"
    assert watched.look(189.0) == []
    assert len(watched.look(190.0)) == 1
    bench.store.answer(0)
    await wait_all_tasks_blocked()
    assert watched.look(191.0) == []
    assert watched.watch.oldest_s == 0


async def test_one_without_room_for_its_append_is_named_so(bench: Bench) -> None:
    watched = Watched(bench)
    bench.inbound.submit([received(1)])
    await wait_all_tasks_blocked()
    bench.store.answer(0)
    await wait_all_tasks_blocked()
    bench.store.has_room = False
    bench.inbound.submit([received(2)])
    await wait_all_tasks_blocked()
    watched.look(0.0)
    (entry,) = watched.look(STUCK_S)
    assert entry["waits_for"] == "room for its append; 'a': state of a"


async def test_stopped_publishes_are_watched_until_they_are_answered(bench: Bench) -> None:
    """No other connection may open the session until then."""
    watched = Watched(bench)
    bench.inbound.submit([received(1)])
    await wait_all_tasks_blocked()
    bench.inbound.stop()
    watched.look(0.0)
    assert len(watched.look(STUCK_S)) == 1
    bench.store.answer(0)
    assert watched.look(2 * STUCK_S) == []
    assert watched.watch.oldest_s == 0
