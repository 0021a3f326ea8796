"""A broker's way to the store, with all that can happen on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import trio

from broker_adapter import StorageAdapter
from broker_adapter.changes import Changes, Committed
from journal.protocol.errors import ConnectionLostError
from shards.model import Appended, StateValue


def _none(name: str) -> bool:
    return False


class Path:
    """Passes calls on to a store, or not.

    While it is frozen calls wait, as they do when a process is stopped or the network is away. When answers are lost
    calls are carried out, and their callers learn that there is no answer when the network is back. `fail`
    plans single failures.

    Args:
        store: Behind the path.
        delay_s: How long each call takes, half of it before it is carried out.
    """

    def __init__(self, store: StorageAdapter, *, delay_s: Callable[[], float] = lambda: 0.0) -> None:
        self._store = store
        self._delay_s = delay_s
        self._open = trio.Event()
        self._open.set()
        self._lost: Callable[[str], bool] = _none
        self._back = trio.Event()
        self._failures: list[tuple[Callable[[str, Any], bool], Callable[[], Exception], bool]] = []
        self.failed_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def freeze(self) -> None:
        # Calls that wait already are let go by the same `thaw`.
        if self._open.is_set():
            self._open = trio.Event()

    def thaw(self) -> None:
        self._lost = _none
        self._open.set()
        self._back.set()

    def lose_answers(self, of: str = "") -> None:
        """Lose the answers to calls, or only of those of one name."""
        self._lost = lambda name: not of or name == of
        if self._back.is_set():
            self._back = trio.Event()

    def fail(
        self,
        when: Callable[[str, Any], bool],
        *,
        carried_out: bool,
        error: Callable[[], Exception] = lambda: ConnectionLostError("the connection ended before the reply came"),
    ) -> None:
        """Let the next call that fits fail, carried out or not."""
        self._failures.append((when, error, carried_out))

    async def _pass(self, name: str, argument: Any, call: Callable[[], Any]) -> Any:
        delay_s = self._delay_s()
        await trio.sleep(delay_s / 2)
        is_lost = self._lost(name)
        if not is_lost:
            await self._open.wait()
        for at, (when, error, carried_out) in enumerate(self._failures):
            if when(name, argument):
                del self._failures[at]
                self.failed_count += 1
                if carried_out:
                    await call()
                raise error()
        result = await call()
        if is_lost:
            await self._back.wait()
            raise ConnectionLostError("the connection ended before the reply came")
        await trio.sleep(delay_s / 2)
        return result

    async def commit(self, changes: Changes) -> Committed:
        return await self._pass("commit", changes, lambda: self._store.commit(changes))

    async def get_state(self, key: bytes) -> StateValue | None:
        return await self._pass("get_state", key, lambda: self._store.get_state(key))

    async def put_state(self, key: bytes, value: bytes, **options: Any) -> StateValue:
        return await self._pass("put_state", key, lambda: self._store.put_state(key, value, **options))

    async def delete_state(self, key: bytes, **options: Any) -> None:
        await self._pass("delete_state", key, lambda: self._store.delete_state(key, **options))

    async def append(self, shard: str, records: Any, **options: Any) -> Appended:
        return await self._pass("append", shard, lambda: self._store.append(shard, records, **options))

    async def scan_state(self, prefix: bytes = b"", *, after: bytes | None = None) -> AsyncIterator[StateValue]:
        await self._pass("scan_state", prefix, trio.lowlevel.checkpoint)
        for value in [value async for value in self._store.scan_state(prefix, after=after)]:
            yield value
