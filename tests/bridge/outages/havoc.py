"""Everything that may happen to a bridge, in an order that chance decides: to its sink and, meanwhile, to its own side.

Each outage ends what it began, so that all is as it was when the time is up.
"""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from broker_adapter.cache_queue import QueueMode, ensure_queue
from broker_adapter.cache_queue.dead_letters import replay_dead_letters
from broker_adapter.cache_queue.queue import purge_queue, settings_of
from broker_adapter.mqtt.config import load_broker_config
from broker_adapter.mqtt.rules.followers import wait_followed
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.rules.store import apply_rules, read_rules
from journal.protocol.errors import is_retriable
from shards.errors import StorageError
from shards.seams.clock import SystemClock
from tests.bridge.outages.disk import RESERVE_BYTES, filled
from tests.bridge.outages.impatient_broker import LEASE
from tests.bridge.outages.world import BRIDGE, World
from tests.mqtt.cluster.processes import Process
from tests.patience import PATIENCE_S
from tests.torture.deliveries.history import Disturbance, ModeChange, Purge, PutBack, StoreDeath

OF_SINK: Final = ("refuse", "hang", "slow_down", "kill_sink", "cut", "cut_within_a_batch")
KILLS: Final = ("kill_broker", "kill_server")
OF_OPERATOR: Final = ("change_mode", "purge", "put_letters_back")
LETTERS_MEANWHILE: Final = 100
"""How many dead letters come at most while others are put back."""
HYBRID_BYTES: Final = 20_000
"""What a hybrid queue holds in memory: little, so that it changes over under load."""
CALM_S: Final = (0.1, 0.8)
OUT_S: Final = (0.1, 1.5)


class Havoc:
    """Makes outages.

    Args:
        disk: Where the server's data lie, if that is small enough to be filled.
        kinds: Names of `OUTAGES`; what is done to the sink, to processes and by an operator goes on side by side.
            Filling the disk comes in addition if there is one.

    Attributes:
        course: What happened, in order.
    """

    def __init__(
        self, world: World, rng: random.Random, disk: Path | None = None, kinds: Sequence[str] = (*OF_SINK, *KILLS)
    ) -> None:
        self.course: list[str] = []
        self._world = world
        self._rng = rng
        self._disk = disk
        self._kinds = (*kinds, *(["fill_disk"] if disk else []))
        self._starting = trio.Lock()

    @property
    def counts(self) -> Counter[str]:
        """How often each happened."""
        return Counter(self.course)

    async def wreak(self, seconds: float) -> None:
        """Have outages for a while, on both sides at once; return when the last ones are over."""
        async with trio.open_nursery() as nursery:
            end_s = trio.current_time() + seconds
            for is_of_side in (OF_SINK.__contains__, OF_OPERATOR.__contains__, _is_of_processes):
                if side := [kind for kind in self._kinds if is_of_side(kind)]:
                    nursery.start_soon(self._go_on, side, end_s, random.Random(self._rng.random()))

    async def _go_on(self, kinds: Sequence[str], end_s: float, rng: random.Random) -> None:
        waiting = list(kinds)
        while trio.current_time() < end_s:
            await trio.sleep(rng.uniform(*CALM_S))
            # Each of them once before any comes again, so that none is left out in a short run.
            if not waiting:
                waiting = list(kinds)
            kind = waiting.pop(rng.randrange(len(waiting)))
            self.course.append(kind)
            with self._world.ledger.during(Disturbance, what=kind):
                try:
                    await OUTAGES[kind](self)
                except StorageError as error:
                    # The store was killed meanwhile: whether it was done is not known, which the history says.
                    if not is_retriable(error):
                        raise

    async def _while_out(self) -> None:
        await trio.sleep(self._rng.uniform(*OUT_S))

    # The sink

    async def refuse(self) -> None:
        self._world.proxy.refuse()
        await self._while_out()
        await self._world.proxy.listen()

    async def hang(self) -> None:
        self._world.proxy.hang()
        await self._while_out()
        self._world.proxy.pass_all()

    async def slow_down(self) -> None:
        self._world.proxy.slow_down(self._rng.uniform(0.01, 0.4))
        await self._while_out()
        self._world.proxy.pass_all()

    async def kill_sink(self) -> None:
        proxy = self._world.stage.proxy
        if proxy is not None:
            proxy.hold_replies()
        await trio.sleep(self._rng.uniform(0, 0.1))
        await self._world.stage.kill()
        if proxy is not None:
            proxy.pass_all()
        await self._while_out()
        await self._world.stage.restart()

    async def cut(self) -> None:
        self._world.proxy.cut()

    async def cut_within_a_batch(self) -> None:
        self._world.proxy.cut_after(self._rng.randrange(1, 20_000))
        await self._while_out()
        self._world.proxy.pass_all()

    # The bridge's side

    async def kill_broker(self) -> None:
        broker = self._rng.choice(self._world.brokers)
        await trio.to_thread.run_sync(broker.end, signal.SIGKILL)
        await self._while_out()
        async with self._starting:
            await trio.to_thread.run_sync(broker.start)

    async def kill_server(self) -> None:
        with self._world.ledger.during(StoreDeath):
            await trio.to_thread.run_sync(self._world.server.end, signal.SIGKILL)
        await self._while_out()
        await trio.to_thread.run_sync(self._world.server.start)

    async def fill_disk(self) -> None:
        assert self._disk is not None
        with filled(self._disk, round(RESERVE_BYTES * self._rng.random())):
            await self._while_out()

    async def freeze_broker(self) -> None:
        """For a moment, or for longer than the lease of a bridge, which another broker has then."""
        await self._freeze(self._rng.choice(self._world.brokers))

    async def freeze_server(self) -> None:
        await self._freeze(self._world.server)

    async def _freeze(self, process: Process) -> None:
        process.freeze()
        await trio.sleep(self._rng.choice((0.1, 1.0, 2 * LEASE.lease_s)))
        process.thaw()

    async def lose_answers(self) -> None:
        """What the store answers to a broker is lost, and then the connection."""
        relay = self._rng.choice(self._world.relays)
        relay.lose_answers()
        await trio.sleep(self._rng.uniform(0.01, 0.2))
        relay.cut()

    # Its operator

    async def change_mode(self, mode: QueueMode | None = None) -> None:
        """As an operator does it: in the rules of all brokers, by `journal-broker apply`; over when all go by them."""
        mode = mode or self._rng.choice(tuple(QueueMode))
        with self._world.ledger.during(ModeChange, is_file=mode is QueueMode.FILE):
            # A broker that starts meanwhile gives the queue the mode of the rules that it has read before.
            async with self._starting:
                while not await self._apply(mode):
                    await trio.sleep(0.1)
            with trio.fail_after(PATIENCE_S):
                while not await self._is_followed():
                    await trio.sleep(0.1)
            while not await self._ensure(mode):
                await trio.sleep(0.1)

    async def _apply(self, mode: QueueMode) -> bool:
        """Have the bridge's mode in the rules; false if the store was killed meanwhile, which may have taken them."""
        text = re.sub('(?m)^mode = ".*"$', f'mode = "{mode.value}"', self._world.configurations[0].read_text())
        path = self._world.configurations[0].with_name("rules.toml")
        path.write_text(text)
        rules = RuleSet.of(load_broker_config(str(path), {}))
        try:
            await apply_rules(self._world.adapter, rules, source=path.name, by="an operator", clock=SystemClock())
        except StorageError as error:
            if not is_retriable(error):
                raise
            return False
        return True

    async def _is_followed(self) -> bool:
        """Whether all brokers go by the rules, those that are dead or frozen too once they are back."""
        try:
            stored = await read_rules(self._world.adapter)
            assert stored is not None
            return not await wait_followed(self._world.adapter, stored.version, timeout_s=1)
        except StorageError as error:
            if not is_retriable(error):
                raise
            return False

    async def _ensure(self, mode: QueueMode) -> bool:
        """Give a hybrid queue little memory, less than rules may; false if the store was killed meanwhile."""
        try:
            settings = settings_of((await self._world.look()).definition)
            await ensure_queue(
                self._world.adapter, BRIDGE, attrs.evolve(settings, mode=mode, memory_bytes=HYBRID_BYTES)
            )
        except StorageError as error:
            if not is_retriable(error):
                raise
            return False
        return True

    async def purge(self) -> None:
        with self._world.ledger.during(Purge):
            await purge_queue(self._world.adapter, BRIDGE)

    async def put_letters_back(self) -> None:
        """The sink takes now what it refused, or refuses it again."""
        state = await self._world.look()
        with self._world.ledger.during(PutBack, count=state.dead_letter_count + LETTERS_MEANWHILE) as noted:
            settings = settings_of(state.definition)
            noted["count"] = await replay_dead_letters(self._world.adapter, BRIDGE, settings)


def _is_of_processes(kind: str) -> bool:
    return kind not in OF_SINK and kind not in OF_OPERATOR


OUTAGES: Mapping[str, Callable[[Havoc], Awaitable[None]]] = {
    outage.__name__: outage
    for outage in (
        *(Havoc.refuse, Havoc.hang, Havoc.slow_down, Havoc.kill_sink, Havoc.cut, Havoc.cut_within_a_batch),
        *(Havoc.kill_broker, Havoc.kill_server, Havoc.fill_disk, Havoc.freeze_broker, Havoc.freeze_server),
        *(Havoc.lose_answers, Havoc.change_mode, Havoc.purge, Havoc.put_letters_back),
    )
}
"""What may happen, by its name."""
