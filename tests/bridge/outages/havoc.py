"""Everything that may happen to a bridge, in an order that chance decides: to its sink and, meanwhile, to its own side.

Each outage ends what it began, so that all is as it was when the time is up.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from tests.bridge.outages.disk import RESERVE_BYTES, filled
from tests.bridge.outages.world import World

CALM_S: Final = (0.1, 0.8)
OUT_S: Final = (0.1, 1.5)

Outage = Callable[[], Awaitable[None]]


class Havoc:
    """Makes outages.

    Args:
        disk: Where the server's data lie, if that is small enough to be filled.

    Attributes:
        course: What happened, in order.
    """

    def __init__(self, world: World, rng: random.Random, disk: Path | None) -> None:
        self.course: list[str] = []
        self._world = world
        self._rng = rng
        self._disk = disk

    @property
    def counts(self) -> Counter[str]:
        """How often each happened."""
        return Counter(self.course)

    async def wreak(self, seconds: float) -> None:
        """Have outages for a while, on both sides at once; return when the last ones are over."""
        own = (self._kill_broker, self._kill_server, *((self._fill_disk,) if self._disk else ()))
        sink = (self._refuse, self._hang, self._slow_down, self._kill_sink, self._cut, self._cut_within_a_batch)
        async with trio.open_nursery() as nursery:
            end_s = trio.current_time() + seconds
            nursery.start_soon(self._go_on, sink, end_s)
            nursery.start_soon(self._go_on, own, end_s)

    async def _go_on(self, outages: Sequence[Outage], end_s: float) -> None:
        waiting = list(outages)
        while trio.current_time() < end_s:
            await trio.sleep(self._rng.uniform(*CALM_S))
            # Each of them once before any comes again, so that none is left out in a short run.
            if not waiting:
                waiting = list(outages)
            outage = waiting.pop(self._rng.randrange(len(waiting)))
            self.course.append(outage.__name__.removeprefix("_"))
            await outage()

    async def _while_out(self) -> None:
        await trio.sleep(self._rng.uniform(*OUT_S))

    # The sink

    async def _refuse(self) -> None:
        self._world.proxy.refuse()
        await self._while_out()
        await self._world.proxy.listen()

    async def _hang(self) -> None:
        self._world.proxy.hang()
        await self._while_out()
        self._world.proxy.pass_all()

    async def _slow_down(self) -> None:
        self._world.proxy.slow_down(self._rng.uniform(0.01, 0.4))
        await self._while_out()
        self._world.proxy.pass_all()

    async def _kill_sink(self) -> None:
        self._world.proxy.hold_replies()
        await trio.sleep(self._rng.uniform(0, 0.1))
        await self._world.stage.kill()
        self._world.proxy.pass_all()
        await self._while_out()
        await self._world.stage.restart()

    async def _cut(self) -> None:
        self._world.proxy.cut()

    async def _cut_within_a_batch(self) -> None:
        self._world.proxy.cut_after(self._rng.randrange(1, 20_000))
        await self._while_out()
        self._world.proxy.pass_all()

    # The bridge's side

    async def _kill_broker(self) -> None:
        broker = self._rng.choice(self._world.brokers)
        await trio.to_thread.run_sync(broker.end, signal.SIGKILL)
        await self._while_out()
        await trio.to_thread.run_sync(broker.start)

    async def _kill_server(self) -> None:
        await trio.to_thread.run_sync(self._world.server.end, signal.SIGKILL)
        await self._while_out()
        await trio.to_thread.run_sync(self._world.server.start)

    async def _fill_disk(self) -> None:
        assert self._disk is not None
        with filled(self._disk, round(RESERVE_BYTES * self._rng.random())):
            await self._while_out()
