"""What clients and operators do to shards that Spark exports or follows, entered into the histories of the targets."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import trio

from broker_adapter import StorageAdapter, open_adapter
from shards.errors import ShardNotFoundError
from shards.format.record import Record, StoredRecord
from tests.mqtt.cluster.processes import Process
from tests.patience import PATIENCE_S
from tests.torture.deliveries.history import NEVER, History, Message, Offer, Outcome, Trim

SHARDS: Final = ("plant/a", "plant/ü", "007")
BATCHES: Final = 8
BATCH_RECORDS: Final = 40


class ShardChanges:
    """Appends, converts, trims and deletions at random.

    Args:
        rng: Decides everything.
        server: The journal server, which runs; it comes back on the same port when it is killed.
        histories: Of all that has to get what is appended.

    Attributes:
        url: Of the server.
    """

    def __init__(self, rng: random.Random, server: Process, histories: Sequence[History]) -> None:
        self.url = f"journal://127.0.0.1:{server.ports['tcp']}"
        self._rng = rng
        self._server = server
        self._histories = histories
        self._generations = dict.fromkeys(SHARDS, 0)
        self._sent: dict[str, int] = {}

    def at_store(self, work: Callable[[StorageAdapter], Awaitable[None]]) -> None:
        """Do something with the store, in bounded time."""

        async def main() -> None:
            with trio.fail_after(PATIENCE_S):
                async with open_adapter(self.url) as store:
                    await work(store)

        trio.run(main)

    async def append_batches(
        self, store: StorageAdapter, shard: str, source: str, histories: Sequence[History]
    ) -> None:
        """Append some batches of numbered records of a source."""
        for _ in range(BATCHES):
            offered = [self._offer(histories, source) for _ in range(self._rng.randrange(1, BATCH_RECORDS))]
            await store.append(shard, [record for _, record in offered])
            for offer, _ in offered:
                offer.outcome, offer.ended_s = Outcome.OK, time.monotonic()

    def append(self) -> None:
        """To any shard, which is made if need be."""
        shard = self._rng.choice(SHARDS)

        async def work(store: StorageAdapter) -> None:
            await store.create_shard(shard, exist_ok=True)
            await self.append_batches(store, shard, self._source(shard), self._histories)

        self.at_store(work)

    def append_while_killed(self) -> None:
        """The server is killed at any point of it, and comes back; its clients go on by themselves."""
        shard = self._rng.choice(SHARDS)

        async def kill() -> None:
            await trio.sleep(self._rng.uniform(0, 0.1))
            await trio.to_thread.run_sync(self._server.end, signal.SIGKILL)
            await trio.to_thread.run_sync(self._server.start)

        async def work(store: StorageAdapter) -> None:
            await store.create_shard(shard, exist_ok=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill)
                await self.append_batches(store, shard, self._source(shard), self._histories)

        self.at_store(work)

    def convert(self) -> None:
        """Make Parquet of a shard."""

        async def work(store: StorageAdapter) -> None:
            with suppress(ShardNotFoundError):
                await store.convert(self._rng.choice(SHARDS))

        self.at_store(work)

    def trim(self) -> None:
        """Remove a part of a shard, read or not: a run that it should have come to says so."""
        shard = self._rng.choice(SHARDS)

        async def work(store: StorageAdapter) -> None:
            with suppress(ShardNotFoundError):
                info = await store.describe_shard(shard)
                before = info.start_offset + round((info.next_offset - info.start_offset) * self._rng.random() * 0.6)
                found = await store.read(shard, before, max_records=1)
                first = next((each for each in found.records if isinstance(each, StoredRecord)), None)
                if first is not None and before > info.start_offset:
                    number = int(first.value.split()[-1])
                    with self._removing(self._source(shard), number):
                        await store.trim(shard, before)

        self.at_store(work)

    def delete(self) -> None:
        """Delete a shard; the next append makes one of its name that is another."""
        shard = self._rng.choice(SHARDS)

        async def work(store: StorageAdapter) -> None:
            with suppress(ShardNotFoundError), self._removing(self._source(shard), NEVER):
                await store.delete_shard(shard)
                self._generations[shard] += 1

        self.at_store(work)

    def _source(self, shard: str) -> str:
        return f"{shard}#{self._generations[shard]}"

    def _offer(self, histories: Sequence[History], source: str) -> tuple[Offer, Record]:
        number = self._sent.get(source, 0)
        self._sent[source] = number + 1
        message = Message(source, number)
        offer = Offer(message, time.monotonic(), content=f"{source} {number}")
        for history in histories:
            history.offers[message] = offer
        return offer, Record(offer.content.encode(), timestamp_us=time.time_ns() // 1000)

    @contextmanager
    def _removing(self, source: str, before: float) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        for history in self._histories:
            history.events.append(Trim(began_s=began_s, ended_s=time.monotonic(), source=source, before=before))
