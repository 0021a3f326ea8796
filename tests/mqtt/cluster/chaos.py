"""Many clients on a cluster in which processes die: what happens, in which order; `ledger` says what must hold."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import trio

from tests.mqtt.cluster.client import Client
from tests.mqtt.cluster.ledger import Ledger, Stream
from tests.mqtt.cluster.packets import V5, V311
from tests.mqtt.cluster.processes import Cluster, Process
from tests.mqtt.cluster.relay import Relay

SETTLE_S = 40.0
QUIET_S = 0.5
REPLAY_S = 30.0
DOWN_S = (0.0, 1.0)
CALM_S = (0.3, 1.2)
MESSAGE_INTERVAL_S = 0.02
DELAY_S = 1
GROUP, GROUP_ONCE = "group", "group-once"
LATE_INTERVAL_S = (0.1, 0.6)
MOST_LATE = 30

MEMORY_RULE = """\
[[storage]]
topics = "+/memory/#"
storage = "memory"
"""
"""For `running_cluster`: what goes to these topics passes the journal's groups by."""


@attrs.define
class Crowd:
    """The clients of one run.

    Attributes:
        late: Those that subscribe while messages are published.
    """

    run: str
    ports: Sequence[int]
    ledger: Ledger
    rng: random.Random
    publishers: list[Client] = attrs.Factory(list)
    subscribers: list[Client] = attrs.Factory(list)
    late: list[Client] = attrs.Factory(list)

    @property
    def everyone(self) -> list[Client]:
        return [*self.publishers, *self.subscribers, *self.late]

    def client(
        self,
        name: str,
        version: int = V5,
        subscriber: str = "",
        subscription: tuple[str, int] = ("", 0),
        receive_maximum: int = 0,
    ) -> Client:
        """A client of this run."""
        return Client(
            f"{self.run}-{name}",
            version,
            self.ports,
            self.ledger,
            random.Random(self.rng.random()),
            subscriber=subscriber,
            subscription=subscription,
            receive_maximum=receive_maximum,
        )

    def late_subscriber(self) -> Client:
        """One more client, which asks for what a part of the topics retain or for what is published to them."""
        number = len(self.late)
        part, qos = self.rng.choice(("retained", "retained", "common", "own")), self.rng.choice((1, 2))
        version, receive_maximum = self.rng.choice(((V5, 0), (V5, 2), (V311, 0)))
        name, prefix = f"late-{number}", f"{self.run}/{part}"
        self.ledger.subscribe(name, qos, prefix=f"{prefix}")
        client = self.client(name, version, name, (f"{prefix}/#", qos), receive_maximum)
        self.late.append(client)
        return client


def make_crowd(ports: Sequence[int], rng: random.Random, run: str, *, publishers: int) -> Crowd:
    """Publishers of both versions; subscriptions to everything at QoS 2 and 1, and two groups that share one."""
    crowd = Crowd(run, ports, Ledger(), rng)
    everything = f"{run}/#"
    for name, version, qos in (("all-2", V5, 2), ("all-2-old", V311, 2), ("all-1", V5, 1)):
        crowd.ledger.subscribe(name, qos)
        crowd.subscribers.append(crowd.client(name, version, name, (everything, qos)))
    for group, qos in ((GROUP, 1), (GROUP_ONCE, 2)):
        crowd.ledger.subscribe(group, qos, is_group=True)
        shared = f"$share/{run}-{group}/{everything}"
        crowd.subscribers += [crowd.client(f"{group}-{number}", V5, group, (shared, qos)) for number in range(3)]
    crowd.publishers += [crowd.client(f"p{number}", (V311, V5)[number % 2]) for number in range(publishers)]
    return crowd


@attrs.define
class Chaos:
    """What is done to a cluster under its clients.

    Args:
        kinds: Of events, each as often as it stands here: names of `EVENTS`.
        relays: Between each broker and the store, for the kinds that need them.
        with_memory: Some topics are in memory mode (`MEMORY_RULE`).
        frozen_s: How long a process that is frozen stands still, from and to.
        least: How often kinds of events happen at least, also when that takes longer than there was time for.

    Attributes:
        counts: How often each kind of event happened.
    """

    cluster: Cluster
    crowd: Crowd
    rng: random.Random
    kinds: Sequence[str]
    relays: Sequence[Relay] = ()
    with_memory: bool = False
    frozen_s: tuple[float, float] = (0.1, 3.0)
    least: Mapping[str, int] = attrs.Factory(dict)
    counts: Counter[str] = attrs.Factory(Counter)

    async def run(self, seconds: float) -> None:
        """Publish for a while during which all this happens; return when all has settled."""
        crowd = self.crowd
        async with trio.open_nursery() as nursery:
            for client in crowd.everyone:
                nursery.start_soon(client.run)
            for subscriber in crowd.subscribers:
                await subscriber.is_subscribed.wait()
            async with trio.open_nursery() as publishing:
                stop = trio.Event()
                for publisher in crowd.publishers:
                    publishing.start_soon(self._publish, publisher, stop, random.Random(self.rng.random()))
                async with trio.open_nursery() as joining:
                    joining.start_soon(self._join_late, nursery)
                    await self._go_wrong(trio.current_time() + seconds)
                    joining.cancel_scope.cancel()
                self._check_processes()
                stop.set()
            await _settle(crowd)
            nursery.cancel_scope.cancel()
        self.counts["messages"] += sum(sent.count for sent in crowd.ledger.streams.values())
        self.counts["late subscribers"] += len(crowd.late)

    def _check_processes(self) -> None:
        """All processes run; those that have died by themselves fail the run."""
        for process in (*self.cluster.brokers, *([self.cluster.server] if self.cluster.server else [])):
            assert process.is_running, process.log_text[-2000:]

    async def _publish(self, publisher: Client, stop: trio.Event, rng: random.Random) -> None:
        """Number messages to a topic of its own, to one that all share, and now and then to special ones."""
        name, run = publisher.client_id, self.crowd.run
        count = 0
        while not stop.is_set():
            count += 1
            if count % 10 == 0:
                # One QoS for each topic, so that one stream tells which value is the newest.
                await publisher.publish(Stream(name, f"{run}/retained/{name}", 1 + ord(name[-1]) % 2), is_retained=True)
            elif count % 10 == 5:
                await publisher.publish(Stream(name, f"{run}/delayed/{name}", rng.choice((1, 2))), delay_s=DELAY_S)
            elif count % 10 in {3, 7} and self.with_memory:
                await publisher.publish(Stream(name, f"{run}/memory/{name}", 1), may_be_lost=True)
            else:
                topic = rng.choice((f"{run}/own/{name}", f"{run}/common"))
                await publisher.publish(Stream(name, topic, rng.choice((1, 2))))
            await trio.sleep(rng.uniform(0, 2 * MESSAGE_INTERVAL_S))

    async def _join_late(self, clients: trio.Nursery) -> None:
        while len(self.crowd.late) < MOST_LATE:
            await trio.sleep(self.rng.uniform(*LATE_INTERVAL_S))
            clients.start_soon(self.crowd.late_subscriber().run)

    async def _go_wrong(self, ends_s: float) -> None:
        """Have events until the time is up; what is begun is ended, so that nothing is left half done."""
        while trio.current_time() < ends_s:
            await self._have(self.rng.choice(self.kinds))
        for kind, least in self.least.items():
            while self.counts[kind] < least:
                await self._have(kind)

    async def _have(self, kind: str) -> None:
        await trio.sleep(self.rng.uniform(*CALM_S))
        await EVENTS[kind](self)
        self.counts[kind] += 1

    async def kill_broker(self) -> None:
        await self._kill_and_restart(self.rng.choice(self.cluster.brokers))

    async def kill_server(self) -> None:
        assert self.cluster.server is not None
        await self._kill_and_restart(self.cluster.server)

    async def _kill_and_restart(self, process: Process) -> None:
        await trio.to_thread.run_sync(process.end, signal.SIGKILL)
        await trio.sleep(self.rng.uniform(*DOWN_S))
        await trio.to_thread.run_sync(process.start)

    async def cut(self) -> None:
        await self.rng.choice(self.crowd.everyone).cut()

    async def cut_members(self) -> None:
        """All members of a group lose their connections within a moment."""
        group = self.rng.choice((GROUP, GROUP_ONCE))
        for client in self.crowd.subscribers:
            if client.client_id.startswith(f"{self.crowd.run}-{group}-") and self.rng.random() < 0.7:
                await client.cut()
                await trio.sleep(self.rng.uniform(0, 0.05))

    async def freeze_broker(self) -> None:
        await self._freeze(self.rng.choice(self.cluster.brokers))

    async def freeze_server(self) -> None:
        assert self.cluster.server is not None
        await self._freeze(self.cluster.server)

    async def _freeze(self, process: Process) -> None:
        process.freeze()
        await trio.sleep(self.rng.uniform(*self.frozen_s))
        process.thaw()

    async def lose_answers(self) -> None:
        """What the store answers to a broker is lost, and then the connection."""
        relay = self.rng.choice(self.relays)
        relay.lose_answers()
        await trio.sleep(self.rng.uniform(0.01, 0.2))
        relay.cut()


EVENTS: Mapping[str, Callable[[Chaos], Awaitable[None]]] = {
    "brokers killed": Chaos.kill_broker,
    "servers killed": Chaos.kill_server,
    "connections cut": Chaos.cut,
    "groups cut": Chaos.cut_members,
    "brokers frozen": Chaos.freeze_broker,
    "servers frozen": Chaos.freeze_server,
    "answers lost": Chaos.lose_answers,
}
"""What may go wrong, by its name in reports."""


async def _settle(crowd: Crowd) -> None:
    """Wait until all is acknowledged and delivered, or until it is plain that it will not be."""
    ledger = crowd.ledger
    with trio.move_on_after(SETTLE_S):
        await _wait_until(lambda: all(each.is_subscribed.is_set() for each in crowd.late))
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


async def read_replayed(port: int, run: str, ledger: Ledger) -> dict[Stream, list[int]]:
    """What a replay of everything from the beginning gives, when nothing more comes."""
    replayed = Ledger(ledger.streams)
    replayed.subscribe("replay", 2)
    reader = Client(
        f"{run}-replay",
        V311,
        [port],
        replayed,
        random.Random(0),
        subscriber="replay",
        subscription=(f"$replay/earliest/{run}/#", 2),
    )
    received = replayed.subscribers["replay"].received
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await reader.is_subscribed.wait()
        wanted = sum(len(sent.acknowledged) for sent in ledger.streams.values())
        with trio.move_on_after(REPLAY_S):
            await _wait_until(lambda: sum(len(set(numbers)) for numbers in received.values()) >= wanted)
        await trio.sleep(QUIET_S)
        nursery.cancel_scope.cancel()
    return received
