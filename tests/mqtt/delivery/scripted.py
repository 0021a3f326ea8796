"""A store that says what a test has it say: feeds whose items and answers come one by one."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from broker_adapter import Delivery, Feed, Progress
from broker_adapter.mqtt.model.message import Message, record_of
from broker_adapter.mqtt.model.storage_rules import LIVE_TARGET
from shards.format.record import StoredRecord


def record(lsn: int, payload: bytes, offset: int = 0, topic: str = "") -> StoredRecord:
    """A record of QoS 1 as a feed brings it."""
    made = record_of(Message("", payload, 1), topic)
    return StoredRecord(offset, lsn, 0, made.value, topic=topic, headers=made.headers)


class ScriptedStore:
    """Its position moves on request, and each feed brings what is put in.

    Attributes:
        committed_lsn: What a feed that begins says.
        answers: If it is not set, requests for the position wait.
        is_asked: Set when the position is requested.
    """

    def __init__(self, committed_lsn: int) -> None:
        self.committed_lsn = committed_lsn
        self.answers = trio.Event()
        self.answers.set()
        self.is_asked = trio.Event()
        self._feeds: dict[str, trio.MemorySendChannel[Delivery | Progress]] = {}
        self.windows: list[tuple[str, int | None, int]] = []
        self.in_window: dict[str, list[StoredRecord]] = {}

    async def bring(self, target: str, *items: Delivery | Progress) -> None:
        """Have the tail of a target bring something, and return when that was handed out."""
        for item in items:
            await self._feeds[target].send(item)
        await trio.testing.wait_all_tasks_blocked()

    @asynccontextmanager
    async def follow(
        self, target: str, after_lsn: int | None = None, *, until_lsn: int | None = None, credit_bytes: int = 1
    ) -> AsyncIterator[Feed]:
        if until_lsn is not None:
            self.windows.append((target, after_lsn, until_lsn))
            yield _Window(target, after_lsn or 0, until_lsn, self.in_window.get(target, []))
            return
        start_lsn = self.committed_lsn
        if target == LIVE_TARGET and credit_bytes == 1:
            self.is_asked.set()
            await self.answers.wait()
            yield _Items(start_lsn, None)
            return
        sending, receiving = trio.open_memory_channel[Delivery | Progress](math.inf)
        self._feeds[target] = sending
        yield _Items(start_lsn if after_lsn is None else after_lsn, receiving)


class _Items(Feed):
    def __init__(self, start_lsn: int, items: trio.MemoryReceiveChannel[Delivery | Progress] | None) -> None:
        self.start_lsn = start_lsn
        self._items = items

    async def __anext__(self) -> Delivery | Progress:
        assert self._items is not None
        return await self._items.receive()


class _Window(Feed):
    def __init__(self, target: str, after_lsn: int, until_lsn: int, records: list[StoredRecord]) -> None:
        self.start_lsn = after_lsn
        found = [one for one in records if after_lsn < one.lsn <= until_lsn]
        self._items: list[Delivery | Progress] = [Progress(until_lsn)]
        if found:
            self._items.insert(0, Delivery(target, found, found[-1].offset + 1))

    async def __anext__(self) -> Delivery | Progress:
        await trio.lowlevel.checkpoint()
        if not self._items:
            raise StopAsyncIteration
        return self._items.pop(0)
