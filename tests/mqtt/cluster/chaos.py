"""Many clients on a cluster in which processes die: what happens, in which order; `ledger` says what must hold."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress

import attrs
import trio

from broker_adapter import StorageAdapter, open_adapter
from shards.errors import ShardNotFoundError
from shards.format.record import Record, StoredRecord
from shards.model import Mode
from tests.mqtt.cluster.client import FOREIGN, Client
from tests.mqtt.cluster.ledger import Ledger, Stream
from tests.mqtt.cluster.mortals import LIVES, Mortal
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
EXPIRY_S = 2
GROUP, GROUP_ONCE = "group", "group-once"
LATE_INTERVAL_S = (0.1, 0.6)
MOST_LATE = 30
QUIET_TOPICS = 10
HARMFUL = frozenset({"brokers killed", "servers killed", "brokers frozen", "servers frozen", "answers lost"})

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
        sets_dup: bool = True,
        breaks_after: int | None = None,
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
            sets_dup=sets_dup,
            breaks_after=breaks_after,
        )

    def late_subscriber(self) -> Client:
        """One more client, which asks for what a part of the topics retain or for what is published to them."""
        number = len(self.late)
        part, qos = self.rng.choice(("retained", "retained", "common", "own")), self.rng.choice((1, 2))
        version, receive_maximum = self.rng.choice(((V5, 0), (V5, 2), (V311, 0)))
        name, prefix = f"late-{number}", f"{self.run}/{part}"
        self.ledger.subscribe(name, qos, prefix=prefix, takes_few=bool(receive_maximum))
        client = self.client(name, version, name, (f"{prefix}/#", qos), receive_maximum)
        self.late.append(client)
        return client

    def quiet_topic(self, number: int) -> str:
        """One of the topics that are retained once, before everything else: no newer value hides a loss."""
        return f"{self.run}/retained/quiet/{number}"

    def breaking_subscriber(self) -> Client:
        """One more client, which loses its connection between SUBACK and the last PUBACK of what is retained."""
        name, prefix = f"breaking-{len(self.late)}", self.quiet_topic(0).removesuffix("0")
        self.ledger.subscribe(name, 1, prefix=prefix, takes_few=True)
        after = self.rng.randrange(QUIET_TOPICS)
        client = self.client(name, V5, name, (f"{prefix}#", 1), receive_maximum=2, breaks_after=after)
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
    crowd.publishers += [
        crowd.client(f"p{number}", (V311, V5)[number % 2], sets_dup=number % 3 != 0) for number in range(publishers)
    ]
    return crowd


@attrs.define
class Chaos:
    """What is done to a cluster under its clients.

    Args:
        kinds: Of events, each as often as it is listed: names of `EVENTS`.
        relays: Between each broker and the store, for the kinds that need them.
        with_memory: Some topics are in memory mode (`MEMORY_RULE`).
        with_histories: Some messages expire, and some topics change their mode.
        frozen_s: How long a process is frozen, from and to.
        least: How often kinds of events happen at least, also when that takes longer than there was time for.

    Attributes:
        counts: How often each kind of event happened.
        broken: What replays that were asked for meanwhile did not keep.
        mortals: Clients with wills.
    """

    cluster: Cluster
    crowd: Crowd
    rng: random.Random
    kinds: Sequence[str]
    relays: Sequence[Relay] = ()
    with_memory: bool = False
    with_histories: bool = False
    frozen_s: tuple[float, float] = (0.1, 3.0)
    least: Mapping[str, int] = attrs.Factory(dict)
    counts: Counter[str] = attrs.Factory(Counter)
    broken: list[str] = attrs.Factory(list)
    mortals: list[Mortal] = attrs.Factory(list)
    _harm: int = 0
    _clients: trio.Nursery | None = None

    async def run(self, seconds: float) -> None:
        """Publish for a while during which all this happens; return when all has settled."""
        crowd = self.crowd
        async with trio.open_nursery() as nursery:
            self._clients = nursery
            for client in crowd.everyone:
                nursery.start_soon(client.run)
            for subscriber in crowd.subscribers:
                await subscriber.is_subscribed.wait()
            if "subscribers cut" in self.kinds:
                await self._retain_quietly(crowd.publishers[0])
            async with trio.open_nursery() as publishing:
                stop = trio.Event()
                for publisher in crowd.publishers:
                    publishing.start_soon(self._publish, publisher, stop, random.Random(self.rng.random()))
                async with trio.open_nursery() as joining:
                    joining.start_soon(self._join_late, nursery)
                    await self._go_wrong(trio.current_time() + seconds)
                    if "wills" in self.kinds:
                        await self._judge_each_life()
                    joining.cancel_scope.cancel()
                self._check_processes()
                stop.set()
            await _settle(crowd, self.mortals)
            nursery.cancel_scope.cancel()
        self.broken += [f"{each.client_id} was not through: {each.life}" for each in self.mortals if not each.is_over]
        self.counts.update(f"wills: {each.life}" for each in self.mortals if each.is_judged)
        self.counts["wills not judged"] += sum(not each.is_judged for each in self.mortals)
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
                # One QoS for each topic, so that one stream shows which value is the newest.
                await publisher.publish(Stream(name, f"{run}/retained/{name}", 1 + ord(name[-1]) % 2), is_retained=True)
            elif count % 10 == 5:
                await publisher.publish(Stream(name, f"{run}/delayed/{name}", rng.choice((1, 2))), delay_s=DELAY_S)
            elif count % 10 in {3, 7} and self.with_memory:
                await publisher.publish(Stream(name, f"{run}/memory/{name}", 1), may_be_lost=True)
            elif count % 10 == 3 and self.with_histories:
                await publisher.publish(Stream(name, f"{run}/expiring/{name}", rng.choice((1, 2))), expiry_s=EXPIRY_S)
            elif count % 10 in {1, 7} and self.with_histories:
                await publisher.publish(Stream(name, _switched(run, name), rng.choice((1, 2))))
            else:
                topic = rng.choice((f"{run}/own/{name}", f"{run}/common"))
                await publisher.publish(Stream(name, topic, rng.choice((1, 2))))
            await trio.sleep(rng.uniform(0, 2 * MESSAGE_INTERVAL_S))

    async def _retain_quietly(self, publisher: Client) -> None:
        """Publish what no newer value replaces."""
        for number in range(QUIET_TOPICS):
            stream = Stream(publisher.client_id, self.crowd.quiet_topic(number), 1)
            await publisher.publish(stream, is_retained=True)
        await _wait_until(lambda: publisher.is_idle)

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

    async def _judge_each_life(self) -> None:
        """Begin more lives until one of each kind was judged: a failure may have hidden what there was to see."""
        while True:
            with trio.move_on_after(SETTLE_S):
                await _wait_until(lambda: all(mortal.is_over for mortal in self.mortals))
            judged = {mortal.life for mortal in self.mortals if mortal.is_over and mortal.is_judged}
            if judged == LIVES.keys() or not all(mortal.is_over for mortal in self.mortals):
                return
            await self._have("wills")

    async def _have(self, kind: str) -> None:
        await trio.sleep(self.rng.uniform(*CALM_S))
        self._harm += kind in HARMFUL
        await EVENTS[kind](self)
        self._harm += kind in HARMFUL
        self.counts[kind] += 1

    async def kill_broker(self) -> None:
        await self._kill_and_restart(self.rng.choice(self.cluster.brokers))

    async def kill_server(self) -> None:
        assert self.cluster.server is not None
        await self._kill_and_restart(self.cluster.server)

    async def _kill_and_restart(self, process: Process) -> None:
        await trio.to_thread.run_sync(process.end, signal.SIGKILL)
        if process is self.cluster.server:
            self.crowd.ledger.lose_memory()
        await trio.sleep(self.rng.uniform(*DOWN_S))
        await trio.to_thread.run_sync(process.start)

    async def cut(self) -> None:
        await self.rng.choice(self.crowd.everyone).cut()

    async def cut_members(self) -> None:
        """All members of a group lose their connections within a moment."""
        group = self.rng.choice((GROUP, GROUP_ONCE))
        for client in self.crowd.subscribers:
            if client.client_id.rpartition("-")[0] == f"{self.crowd.run}-{group}" and self.rng.random() < 0.7:
                await client.cut()
                await trio.sleep(self.rng.uniform(0, 0.05))

    async def cut_subscriber(self) -> None:
        """A new subscriber loses its connection while what is retained is on its way to it, and continues."""
        assert self._clients is not None
        self._clients.start_soon(self.crowd.breaking_subscriber().run)

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

    async def take_over(self) -> None:
        """A client comes by another connection while the broker still has the one before."""
        self.rng.choice(self.crowd.everyone).leave()

    async def have_wills(self) -> None:
        """Clients with wills begin their lives, one of each kind."""
        assert self._clients is not None
        for life in LIVES:
            name = f"{self.crowd.run}-mortal-{len(self.mortals)}"
            mortal = Mortal(
                name,
                self.crowd.ports,
                self.crowd.ledger,
                random.Random(self.rng.random()),
                f"{self.crowd.run}/wills/{name}",
                self.rng.choice((1, 2, 2)),
                life,
                lambda: self._harm,
            )
            self.mortals.append(mortal)
            self._clients.start_soon(mortal.run)

    async def trim(self) -> None:
        """An operator removes the first part of what a topic has."""
        topic = f"{self.crowd.run}/own/{self.rng.choice(self.crowd.publishers).client_id}"
        async with self._store() as store:
            try:
                info = await store.describe_shard(topic)
            except ShardNotFoundError:
                return  # nothing was published there yet
            before = info.start_offset + round((info.next_offset - info.start_offset) * self.rng.random() * 0.5)
            numbers: dict[Stream, set[int]] = {}
            async for record in _records(store, topic, info.start_offset, before):
                publisher, qos, number = record.value.decode().split()
                numbers.setdefault(Stream(publisher, topic, int(qos)), set()).add(int(number))
            for stream, some in numbers.items():
                self.crowd.ledger.trim(stream, some)
            await store.trim(topic, before)
            for stream, some in numbers.items():
                self.crowd.ledger.trimmed(stream, some)

    async def append_foreign(self) -> None:
        """Another program appends a record that fits into no packet of MQTT 5."""
        record = Record(FOREIGN, headers=(("content-type", b"x" * 70_000),))
        async with self._store() as store:
            with suppress(ShardNotFoundError):
                await store.append(f"{self.crowd.run}/common", [record])

    async def switch_mode(self) -> None:
        """An operator puts a topic into memory, or back into files."""
        topic = _switched(self.crowd.run, self.rng.choice(self.crowd.publishers).client_id)
        ledger = self.crowd.ledger
        async with self._store() as store:
            try:
                if topic in ledger.in_memory:
                    await store.set_mode(topic, Mode.FILE)
                    ledger.put_into_files(topic)
                else:
                    ledger.put_into_memory(topic)
                    await store.set_mode(topic, Mode.MEMORY)
            except ShardNotFoundError:
                ledger.put_into_files(topic)

    async def replay(self) -> None:
        """A client asks for everything from the beginning, while more is published."""
        self.counts["replayed messages"] += await self.replay_at(self.rng.choice(self.cluster.mqtt_ports))

    async def replay_at(self, port: int) -> int:
        """Ask a broker for everything from the beginning, and note what is wrong; how many messages came."""
        ledger = self.crowd.ledger
        wanted = ledger.replayable()
        trimmed = {stream: set(sent.trimmed) for stream, sent in ledger.streams.items()}
        found = await read_replayed(port, self.crowd.run, ledger)
        self.broken += ledger.replay_problems(found, wanted, trimmed)
        return sum(map(len, found.values()))

    def _store(self) -> AbstractAsyncContextManager[StorageAdapter]:
        assert self.cluster.server is not None
        return open_adapter(f"journal://127.0.0.1:{self.cluster.server.ports['tcp']}")


def _switched(run: str, publisher: str) -> str:
    return f"{run}/switched/{publisher}"


async def _records(store: StorageAdapter, shard: str, offset: int, before: int) -> AsyncIterator[StoredRecord]:
    while offset < before:
        found = await store.read(shard, offset, max_bytes=1 << 20)
        for record in found.records:
            if isinstance(record, StoredRecord) and record.offset < before:
                yield record
        offset = found.next_offset


EVENTS: Mapping[str, Callable[[Chaos], Awaitable[None]]] = {
    "brokers killed": Chaos.kill_broker,
    "servers killed": Chaos.kill_server,
    "connections cut": Chaos.cut,
    "groups cut": Chaos.cut_members,
    "subscribers cut": Chaos.cut_subscriber,
    "brokers frozen": Chaos.freeze_broker,
    "servers frozen": Chaos.freeze_server,
    "answers lost": Chaos.lose_answers,
    "takeovers": Chaos.take_over,
    "wills": Chaos.have_wills,
    "trims": Chaos.trim,
    "foreign records": Chaos.append_foreign,
    "modes switched": Chaos.switch_mode,
    "replays": Chaos.replay,
}
"""What may go wrong, by its name in reports."""


async def _settle(crowd: Crowd, mortals: Sequence[Mortal]) -> None:
    """Wait until all is acknowledged and delivered, or until nothing more of it comes for a long time."""
    ledger = crowd.ledger
    with trio.move_on_after(SETTLE_S) as waiting:
        await _wait_until(lambda: all(each.is_subscribed.is_set() for each in crowd.late))
        await _wait_until(lambda: all(publisher.is_idle for publisher in crowd.publishers))
        await _wait_until(lambda: all(mortal.is_over for mortal in mortals))
        missing = ledger.missing()
        while missing:
            await trio.sleep(0.05)
            if (now_missing := ledger.missing()) < missing:
                # A client that takes few messages at a time has much before it; while it gets on it is not stuck.
                missing = now_missing
                waiting.deadline = trio.current_time() + SETTLE_S
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
    """What a replay of everything from the beginning gives, until all is there that was acknowledged when it began."""
    wanted = ledger.replayable()
    replayed = Ledger(ledger.streams, late=ledger.late)
    replayed.subscribe("replay", 2)
    reader = Client(
        f"{run}-replay-{ledger.clock()}",
        V311,
        [port],
        replayed,
        random.Random(0),
        subscriber="replay",
        subscription=(f"$replay/earliest/{run}/#", 2),
    )
    received = replayed.subscribers["replay"].received

    def is_complete() -> bool:
        return all(
            numbers - ledger.streams[stream].excused <= set(received.get(stream, ()))
            for stream, numbers in wanted.items()
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        with trio.move_on_after(REPLAY_S):
            await reader.is_subscribed.wait()
            await _wait_until(is_complete)
        await trio.sleep(QUIET_S)
        nursery.cancel_scope.cancel()
    return received
