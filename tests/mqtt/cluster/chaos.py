"""Many clients on a cluster in which processes die: what happens, in which order; `ledger` says what must hold."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence

import attrs
import trio

from tests.mqtt.cluster.client import Client
from tests.mqtt.cluster.ledger import Ledger, Stream
from tests.mqtt.cluster.packets import V5, V311
from tests.mqtt.cluster.processes import Cluster, Process

SETTLE_S = 40.0
QUIET_S = 0.5
DOWN_S = (0.0, 1.0)
CALM_S = (0.3, 1.2)
MESSAGE_INTERVAL_S = 0.02
RETAIN_EVERY = 10
GROUP = "chaos-group"


@attrs.define
class Course:
    """What was done to the cluster."""

    killed_brokers: int = 0
    killed_servers: int = 0
    cut_connections: int = 0


@attrs.define
class Crowd:
    """The clients of one run."""

    ledger: Ledger
    publishers: list[Client]
    subscribers: list[Client]

    @property
    def everybody(self) -> list[Client]:
        return [*self.publishers, *self.subscribers]


def make_crowd(ports: Sequence[int], rng: random.Random, run: str, *, publishers: int) -> Crowd:
    """Publishers of both versions; subscriptions to everything at QoS 2 and 1, and a group that shares one."""
    ledger = Ledger()

    def client(name: str, version: int, subscriber: str = "", subscription: tuple[str, int] = ("", 0)) -> Client:
        return Client(
            f"{run}-{name}", version, ports, ledger, random.Random(rng.random()),
            subscriber=subscriber, subscription=subscription,
        )  # fmt: skip

    everything = f"{run}/#"
    subscribers: list[Client] = []
    for name, version, qos in (("all-2", V5, 2), ("all-2-old", V311, 2), ("all-1", V5, 1)):
        ledger.subscribe(name, qos)
        subscribers.append(client(name, version, name, (everything, qos)))
    ledger.subscribe(GROUP, 1, is_group=True)
    shared = f"$share/{run}/{everything}"
    subscribers += [client(f"member-{number}", V5, GROUP, (shared, 1)) for number in range(3)]
    return Crowd(ledger, [client(f"p{number}", (V311, V5)[number % 2]) for number in range(publishers)], subscribers)


async def run_chaos(
    cluster: Cluster, crowd: Crowd, run: str, seconds: float, rng: random.Random, *, kills: bool
) -> Course:
    """Publish for a while during which processes die and connections are lost; return when all has settled."""
    course = Course()
    async with trio.open_nursery() as nursery:
        for client in crowd.everybody:
            nursery.start_soon(client.run)
        for subscriber in crowd.subscribers:
            await subscriber.is_subscribed.wait()
        async with trio.open_nursery() as publishing:
            stop = trio.Event()
            for publisher in crowd.publishers:
                publishing.start_soon(_publish, publisher, run, stop, random.Random(rng.random()))
            with trio.move_on_after(seconds):
                await _wreak_havoc(cluster, crowd, course, rng, kills=kills)
            await _restore(cluster)
            stop.set()
        await _settle(crowd)
        nursery.cancel_scope.cancel()
    return course


async def _publish(publisher: Client, run: str, stop: trio.Event, rng: random.Random) -> None:
    """Number messages to a topic of its own, to one that all share and, now and then, to one that retains them."""
    name = publisher.client_id
    count = 0
    while not stop.is_set():
        count += 1
        if count % RETAIN_EVERY == 0:
            await publisher.publish(Stream(name, f"{run}/retained/{name}", 1), is_retained=True)
        else:
            topic = rng.choice((f"{run}/own/{name}", f"{run}/common"))
            await publisher.publish(Stream(name, topic, rng.choice((1, 2))))
        await trio.sleep(rng.uniform(0, 2 * MESSAGE_INTERVAL_S))


async def _wreak_havoc(cluster: Cluster, crowd: Crowd, course: Course, rng: random.Random, *, kills: bool) -> None:
    while True:
        await trio.sleep(rng.uniform(*CALM_S))
        what = rng.choice(("broker", "broker", "server", "cut")) if kills else "cut"
        if what == "cut":
            await rng.choice(crowd.everybody).cut()
            course.cut_connections += 1
            continue
        process = cluster.server if what == "server" else rng.choice(cluster.brokers)
        assert process is not None
        if what == "server":
            course.killed_servers += 1
        else:
            course.killed_brokers += 1
        await _kill_and_restart(process, rng.uniform(*DOWN_S))


async def _kill_and_restart(process: Process, down_s: float) -> None:
    # What is begun here is ended here, so that no process is left half started when the time is up.
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(process.end, signal.SIGKILL)
        await trio.sleep(down_s)
        await trio.to_thread.run_sync(process.start)


async def _restore(cluster: Cluster) -> None:
    """All processes run; those that have died by themselves fail the run."""
    processes = [*cluster.brokers, *([cluster.server] if cluster.server else [])]
    for process in processes:
        assert process.is_running, process.log_text[-2000:]


async def _settle(crowd: Crowd) -> None:
    """Wait until all is acknowledged and delivered, or until it is plain that it will not be."""
    ledger = crowd.ledger
    with trio.move_on_after(SETTLE_S):
        await _wait_until(lambda: all(publisher.is_idle for publisher in crowd.publishers))
        await _wait_until(lambda: not ledger.missing())
    # What must not come has no condition to wait for.
    await trio.sleep(QUIET_S)


async def _wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await trio.sleep(0.05)


async def read_retained(port: int, run: str) -> dict[str, tuple[Stream, int] | None]:
    """What a new subscriber is given for the topics that retain."""
    ledger = Ledger()
    ledger.subscribe("late", 1)
    late = Client(
        f"{run}-late-{port}",
        V5,
        [port],
        ledger,
        random.Random(0),
        subscriber="late",
        subscription=(f"{run}/retained/#", 1),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(late.run)
        await late.is_subscribed.wait()
        await trio.sleep(QUIET_S)
        nursery.cancel_scope.cancel()
    received = ledger.subscribers["late"].received
    return {stream.topic: (stream, numbers[-1]) for stream, numbers in received.items()}
