"""Steps that both demos have: the clients gather and publish, a session comes back, everything is received."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import trio

from demo.clients.base_crowd import TOPICS, BaseCrowd
from demo.display import Display
from demo.evidence.read_back import ReadBack
from demo.waiting import WAIT_S, look_until, until

_SHOW_INTERVAL_S: Final = 0.1
_QUIET_S: Final = 0.3


async def gather(crowd: BaseCrowd, display: Display) -> None:
    """Connect all clients, and subscribe.

    Raises:
        DemoError: A client was not accepted, or a subscription was not granted.
    """
    for listener, topic_filter in crowd.listeners.items():
        listener.client.subscribe(topic_filter, 1 if topic_filter.startswith("$share") else 2)
        listener.client.connect()
    for publisher in crowd.publishers:
        publisher.client.connect()
    await until("a client was not accepted", lambda: all(client.is_connected for client in crowd.clients))
    await until("a subscription was not granted", lambda: all(each.client.is_subscribed for each in crowd.listeners))
    display.step(f"{len(crowd.clients)} clients (paho-mqtt, MQTT 3.1.1 and 5) are at three brokers; two publish /proc")


async def show_counts(crowd: BaseCrowd, show: Callable[[str], None]) -> None:
    """Show the counts until cancelled."""
    while True:
        show(crowd.in_words())
        await trio.sleep(_SHOW_INTERVAL_S)


async def send_away(crowd: BaseCrowd, display: Display) -> int:
    """Disconnect the durable session; returns the port of its broker."""
    client, port = crowd.away.client, crowd.away.client.port
    await trio.to_thread.run_sync(client.leave)
    display.step(f"the durable session '{client.client_id}' goes away at {crowd.away.ledger.count:,} messages")
    return port


async def come_back(
    crowd: BaseCrowd, left_port: int, away_s: float, not_due: Collection[str], display: Display
) -> tuple[int, float]:
    """Connect the session that was away at another broker; wait until it has the messages queued meanwhile.

    Args:
        crowd: The clients.
        left_port: Port of the broker that it left.
        away_s: How long it was away.
        not_due: Kinds of telemetry that it may lack.
        display: Shows the step.

    Returns:
        Messages that it got, and after how many seconds it had them.

    Raises:
        DemoError: It did not get them in time.
    """
    client, ledger = crowd.away.client, crowd.away.ledger
    before, begun_at = ledger.count, trio.current_time()
    client.move_on()
    client.connect()
    goal = {
        topic: sum(bool(each.acknowledged_at_us) for each in published)
        for publisher in crowd.publishers
        for topic, published in publisher.ledger.topics.items()
        if topic.rsplit("/", 1)[-1] not in not_due
    }
    await until(
        "the session that was away did not get the messages queued meanwhile",
        lambda: all(len(ledger.topics[topic]) >= count for topic, count in goal.items()),
    )
    caught_up = (ledger.count - before, trio.current_time() - begun_at)
    assert client.port != left_port
    display.step(f"'{client.client_id}' is back at another broker after {away_s:.1f} s and has caught up")
    return caught_up


async def publish_the_rest(crowd: BaseCrowd, display: Display) -> None:
    """Publish what publishers hold, and wait until all is acknowledged.

    Raises:
        DemoError: It took too long.
    """

    def is_through() -> bool:
        for publisher in crowd.publishers:
            publisher.publish_held()
        return all(publisher.is_through for publisher in crowd.publishers)

    await until("not everything that was published is acknowledged", is_through)
    display.step(crowd.in_words())


async def receive_the_rest(crowd: BaseCrowd, stored: Mapping[str, ReadBack], display: Display) -> tuple[int, float]:
    """Wait until the subscribers have all stored messages; then replay all of them to another client.

    Returns:
        Messages of the replay, and how many seconds it took.
    """
    numbers = {topic: {record.number for record in read.found} for topic, read in stored.items()}
    count = sum(len(read.found) for read in stored.values())

    def have_all() -> bool:
        return all(
            wanted <= {each.number for each in ledger.topics[topic]}
            for ledger in crowd.ledgers.values()
            if ledger is not crowd.player.ledger
            for topic, wanted in numbers.items()
        )

    # Messages that do not come in time are reported by the checks.
    with trio.move_on_after(WAIT_S):
        await look_until(have_all)
    begun_at = trio.current_time()
    crowd.player.client.subscribe(f"$replay/earliest/{TOPICS}", 2)
    crowd.player.client.connect()
    with trio.move_on_after(WAIT_S):
        await look_until(lambda: crowd.player.ledger.count >= count)
    replayed = (crowd.player.ledger.count, trio.current_time() - begun_at)
    display.step(f"a client without a session has got a replay from the beginning: {replayed[0]:,} messages")
    # There is no condition to wait for: nothing more may come.
    await trio.sleep(_QUIET_S)
    return replayed
