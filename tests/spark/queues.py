"""Cache queues on a real server, for the tests of draining them: filled, looked at, driven by another process."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import LeaseSettings, QueueDrain, QueueLease, QueueSettings
from broker_adapter.cache_queue import ensure_queue as ensure
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.lease import Grant
from broker_adapter.cache_queue.names import known_end_key, lease_key, progress_key, shard_of
from broker_adapter.cache_queue.stored import Counts, KnownEnd, Lease, Progress
from broker_adapter.state_forms import decode, encode
from shards.format.record import Record
from shards.model import Mode
from tests.patience import PATIENCE_S

QUICK = LeaseSettings(lease_s=1.5, renew_interval_s=0.1)
_Result = TypeVar("_Result")


def at(server: str, work: Callable[[StorageAdapter], Awaitable[_Result]]) -> _Result:
    """Do something with the store of a server."""

    async def main() -> _Result:
        with trio.fail_after(PATIENCE_S):
            async with open_adapter(server) as adapter:
                return await work(adapter)

    return trio.run(main)


def fill(
    server: str, queue: str, records: Sequence[Record], *, convert: bool = False, mode: Mode | None = None
) -> None:
    """Put records into a queue, which is made if it is not there; perhaps convert all that it has then."""

    async def work(adapter: StorageAdapter) -> None:
        await ensure(adapter, queue, QueueSettings())
        if mode is not None:
            await adapter.set_mode(shard_of(queue), mode)
        for first in range(0, len(records), 1000):
            await adapter.append(shard_of(queue), records[first : first + 1000])
        if convert:
            await adapter.convert(shard_of(queue))

    at(server, work)


def cursor_of(server: str, queue: str) -> int:
    """Up to which offset the queue is drained; -1 if no process has begun to drain it."""

    async def work(adapter: StorageAdapter) -> int:
        found = await adapter.get_state(progress_key(queue))
        return -1 if found is None else decode(Progress, found.key, found.value).offset

    return at(server, work)


def trim(server: str, queue: str, before_offset: int) -> None:
    async def work(adapter: StorageAdapter) -> None:
        await adapter.trim(shard_of(queue), before_offset)

    at(server, work)


def drive_up_to(server: str, queue: str, offset: int) -> None:
    """What a live bridge does whose sink takes the records below an offset."""

    async def work(adapter: StorageAdapter) -> None:
        async with QueueLease(adapter, queue, "bridge", QUICK).hold() as grant:
            drain = QueueDrain(adapter, grant)
            await drain.begin()
            await drain.confirm(offset, Counts(confirmed=offset - drain.offset), 0)

    at(server, work)


def set_aside(server: str, queue: str, *refused_offsets: int) -> None:
    """What a live bridge does whose sink refuses records, and that is killed before it confirms those before them."""

    async def work(adapter: StorageAdapter) -> None:
        async with QueueLease(adapter, queue, "bridge", QUICK).hold() as grant:
            drain = QueueDrain(adapter, grant)
            await drain.begin()
            found = await drain.read(0, max_bytes=1 << 20, max_wait_s=0)
            await drain.set_aside([(each, "no") for each in found.records if each.offset in refused_offsets])

    at(server, work)


def writer_knows(server: str, queue: str, end_offset: int) -> None:
    """What a writer keeps of a queue in memory: each offset below was given to a record."""

    async def work(adapter: StorageAdapter) -> None:
        shard_id = (await adapter.describe_shard(shard_of(queue))).shard_id
        await adapter.put_state(known_end_key(queue, "writer"), encode(KnownEnd(shard_id, end_offset)))

    at(server, work)


def usurp(server: str, queue: str, *, cursor: bool = False) -> None:
    """Take the lease away, or the cursor with it, from its holder."""

    async def work(adapter: StorageAdapter) -> None:
        await adapter.put_state(lease_key(queue), encode(Lease("usurper", "claim", 99, 0)))
        if cursor:
            await QueueDrain(adapter, Grant(queue, "usurper", 99)).begin()

    at(server, work)


@contextmanager
def driven(server: str, queue: str, *, ask: bool = False) -> Iterator[list[str]]:
    """Drive the queue while the block runs, as a bridge does.

    Args:
        ask: Keep the lease when another process asks for it.

    Yields:
        What it did so far: ``held`` and ``aside``, in turns; it holds the queue when the block begins.
    """
    turns: list[str] = []
    is_held, over = threading.Event(), trio.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def drive(adapter: StorageAdapter) -> None:
        lease = QueueLease(adapter, queue, "bridge", QUICK)
        while True:
            try:
                async with lease.hold(ask=ask):
                    turns.append("held")
                    is_held.set()
                    await trio.sleep_forever()
            except QueueLostError:
                turns.append("aside")
                is_held.clear()

    async def main() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with open_adapter(server) as adapter, trio.open_nursery() as nursery:
            nursery.start_soon(drive, adapter)
            await over.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    try:
        assert is_held.wait(PATIENCE_S)
        yield turns
        assert is_held.wait(PATIENCE_S), f"the driver did not come back: {turns}"
    finally:
        tokens[0].run_sync_soon(over.set)
        thread.join()
