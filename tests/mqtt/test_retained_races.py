"""Who subscribes while a retained message is published gets it: as retained or as a live message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from broker_adapter import Delivery, Feed, Progress, StorageAdapter, open_adapter
from broker_adapter.mqtt.model.storage_rules import LIVE_TARGET
from tests.mqtt.serving import serving


class SlowAnswers:
    """A store that, on request, reports its position late. All else is the store's own."""

    def __init__(self, store: StorageAdapter) -> None:
        self._store = store
        self.is_asked = trio.Event()
        self.answers = trio.Event()
        self.answers.set()
        self.tells = trio.Event()
        self.tells.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def follow(self, target: str, *arguments: Any, **options: Any) -> AsyncIterator[Feed]:
        async with self._store.follow(target, *arguments, **options) as feed:
            if target == LIVE_TARGET and options.get("credit_bytes") == 1:
                self.is_asked.set()
                await self.answers.wait()
            yield _Feed(self, feed)


class _Feed(Feed):
    def __init__(self, store: SlowAnswers, feed: Feed) -> None:
        self.start_lsn = feed.start_lsn
        self._store = store
        self._feed = feed
        self._has_delivered = False

    async def __anext__(self) -> Delivery | Progress:
        item = await self._feed.__anext__()
        if isinstance(item, Delivery):
            self._has_delivered = True
        elif self._has_delivered:
            await self._store.tells.wait()
        return item


async def test_a_subscriber_misses_the_newest_retained_message_that_is_published_while_it_subscribes() -> None:
    """It counted from the lsn of the record, which is lower than the version of the value: it got neither copy."""
    async with open_adapter("memory:") as opened:
        store = SlowAnswers(opened)
        async with serving(store) as served:  # type: ignore[arg-type]
            watcher, publisher, client = [await served.client(name) for name in ("watcher", "publisher", "client")]
            await watcher.subscribe("#", qos=1)
            store.answers, store.is_asked, store.tells = trio.Event(), trio.Event(), trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.subscribe, "a")
                await store.is_asked.wait()
                await publisher.publish("a", b"newest", 1, retain=True)
                # The tail that both subscriptions use has handed it out.
                assert (await watcher.message()).payload == b"newest"
                store.answers.set()
            assert (await client.message()).payload == b"newest"
            await client.silent()
            store.tells.set()
