"""Replay: delivers stored records from a position on, in order, and then new ones, as fast as the inbox is emptied."""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import ClassVar, Final

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import OffsetOutOfRangeError
from broker_adapter.mqtt.delivery.dedup_watermark import DedupWatermark
from broker_adapter.mqtt.delivery.inbox import Inbox
from broker_adapter.mqtt.delivery.private_feed import PrivateFeed
from broker_adapter.mqtt.delivery.record_group import Match, runs_of
from broker_adapter.mqtt.model.position import BEGINNING, Position, ReachedLsn
from broker_adapter.mqtt.model.subscription import Origin, SubscriptionOptions
from broker_adapter.mqtt_codec.text import shown
from broker_adapter.subscription import Delivery, Feed, Progress, Subscription
from broker_adapter.topic_mapping import TopicOf
from shards.position import Start
from shards.topics.topic_filters import matches

_CREDIT_BYTES: Final = 256 << 10


class Replay(PrivateFeed):
    """The replay of one target.

    From an lsn or the beginning it reads a feed, which has one position for all shards; from an offset or a time it
    subscribes, and remembers the offset in each shard that it has met.

    Args:
        inbox: Inbox of the session.
        topic_filter: Filter of the replay.
        options: Options of the subscription.
        target: Shard, or filter over shards, where the records are stored.
        topic_of: Tells the topics of records.
        earlier: Other targets of the same replay: shards that match one of them are skipped here.
        start: Where it begins.
    """

    what: ClassVar[str] = "the replay"

    def __init__(
        self,
        inbox: Inbox,
        topic_filter: str,
        options: SubscriptionOptions,
        target: str,
        *,
        topic_of: TopicOf,
        earlier: tuple[str, ...],
        start: Start,
    ) -> None:
        super().__init__(inbox, target, BEGINNING)
        self._topic_filter = topic_filter
        self._match = Match(inbox, (options,))
        self._topic_of = topic_of
        self._earlier = earlier
        self._start = start
        self._watermark = DedupWatermark(ReachedLsn(max(0, start.value - 1) if start.kind == "lsn" else 0))

    async def _receive(self, adapter: StorageAdapter, task_status: trio.TaskStatus[None]) -> None:
        try:
            async with self._opened(adapter) as feed:
                self._began(task_status)
                async for item in feed:
                    if isinstance(item, Progress):
                        self._watermark.raise_to(Position(item.lsn).lsn)
                    else:
                        await self._take(item)
        except OffsetOutOfRangeError as error:
            if self._start.value > error.next_offset:
                raise
            # The older records were dropped: begin with the first that is left.
            self._start = Start.offset(error.start_offset)
            await self._receive(adapter, task_status)

    def _opened(self, adapter: StorageAdapter) -> AbstractAsyncContextManager[Feed | Subscription]:
        if self._start.kind in ("earliest", "lsn"):
            return adapter.follow(self._target, self._watermark.lsn, credit_bytes=_CREDIT_BYTES)
        return adapter.subscribe(self._target, self._start, credit_bytes=_CREDIT_BYTES)

    async def _take(self, delivery: Delivery) -> None:
        if any(matches(target, delivery.shard) for target in self._earlier):
            return
        for run in runs_of(
            delivery,
            topic_of=self._topic_of,
            on_gap=lambda _gap: None,
            origin=Origin.REPLAY,
        ):
            start = self._watermark.first_new(run.shard, run.records)
            if start < len(run.records) and matches(self._topic_filter, run.topic):
                await self._put(list(run.arrivals(self._match, start)[0]))
            last = run.records[-1]
            self._watermark.advance(run.shard, (last.lsn, last.offset))
        if self._start.kind == "offset":
            self._start = Start.offset(delivery.next_offset)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_AGO: Final = re.compile(r"-(?:[0-9]{1,9}[smhdw])+")
_PART: Final = re.compile(r"([0-9]+)([smhdw])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_replay_start(text: str, *, now_us: int) -> Start:
    """The start that ``replay-from`` names.

    Args:
        text: ``earliest``, an offset, a time in ISO 8601 (UTC unless it names a zone), or a time back from now as in
            ``-15m`` (units s, m, h, d, w).
        now_us: Present time, in microseconds since 1970; times back from now are relative to it.

    Raises:
        ValueError: It is none of these.
    """
    if text == "earliest":
        return Start.earliest()
    if _OFFSET.fullmatch(text):
        return Start.offset(int(text))
    if _AGO.fullmatch(text):
        ago_s = sum(int(count) * _UNITS_S[unit] for count, unit in _PART.findall(text))
        return Start.time(max(0, now_us - ago_s * 1_000_000))
    try:
        # Digits alone are an offset, but this one is too large.
        moment = datetime.fromisoformat("" if text.isdigit() else text)
        since_epoch = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"replay-from {shown(text)} is none of: earliest, an offset, an ISO 8601 time such as "
            f"2026-01-31T12:00:00Z, a time back from now such as -15m"
        ) from error
    return Start.time(max(0, (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds))
