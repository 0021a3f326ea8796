"""Pushes of subscriptions as JSON messages of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import trio

from journal.engine import Engine
from journal.net.output import Output
from journal.server.json_protocol.messages import encode_json, error_fields
from journal.server.json_protocol.records import Page, is_large, pages
from journal.server.pushing import PushState
from shards.subscriptions.events import Notice, Push

PAGE_BYTES: Final = 64 * 1024
_ON_THE_LOOP_BYTES: Final = 128 * 1024


class Opener:
    """Decodes batches for all JSON connections of a server, so that large ones do not delay other clients.

    Args:
        engine: Provides the limits and the time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._largest_raw_bytes = engine.config.limits.max_frame_bytes
        # One at a time: the memory for decoded batches has a bound, whatever the number of connections.
        self._limiter = trio.CapacityLimiter(1)

    def open(self, shard: str, push: Push, page_bytes: int) -> PageReader:
        """The content of a push as pages.

        Raises:
            BatchError: It contains invalid batches.
        """
        found = pages(
            shard,
            push.buffers,
            push.first_offset,
            push.next_offset,
            now_us=self._engine.now_us(),
            page_bytes=page_bytes,
            largest_raw_bytes=self._largest_raw_bytes,
        )
        return PageReader(found, self._limiter if is_large(push.buffers, _ON_THE_LOOP_BYTES) else None)


class PageReader:
    """Reads pages one by one; large ones are made in a thread."""

    def __init__(self, found: Iterator[Page], limiter: trio.CapacityLimiter | None) -> None:
        self._found = found
        self._limiter = limiter

    async def next(self) -> Page | None:
        """The next page, None after the last."""
        if self._limiter is None:
            await trio.lowlevel.checkpoint()
            return next(self._found, None)
        return await trio.to_thread.run_sync(next, self._found, None, limiter=self._limiter)


class JsonPushes:
    """Encodes the pushes of one JSON connection."""

    largest_push_bytes = PAGE_BYTES

    def __init__(self, output: Output, opener: Opener) -> None:
        self._output = output
        self._opener = opener
        self._names: dict[int, dict[int, str]] = {}

    async def send(self, state: PushState, item: Push | Notice) -> int:
        if isinstance(item, Notice):
            self._tell(state, item)
            return 0
        shard = self._names[state.number][item.reference]
        reader = self._opener.open(shard, item, PAGE_BYTES)
        used_bytes = 0
        # All of it is sent, even beyond the credit: a batch is sent as a whole, as in the native protocol.
        while state.delivers(shard) and (page := await reader.next()) is not None:
            await self._output.wait_for_room()
            if state.delivers(shard):
                used_bytes += self._send(records_message(state.number, shard, page))
                if page.error is not None:
                    used_bytes += self._send(unreadable_message(state.number, shard, page))
        return used_bytes

    def _send(self, message: bytes) -> int:
        self._output.send((message,), len(message))
        return len(message)

    def _tell(self, state: PushState, notice: Notice) -> None:
        if notice.event == "added":
            self._names.setdefault(state.number, {})[notice.reference] = notice.name
        fields: dict[str, object] = {"tail": state.number, "event": notice.event}
        if notice.reference:
            fields |= {"shard": notice.name, "offset": notice.offset}
        else:
            fields["lsn"] = notice.lsn
        if notice.event in ("removed", "error"):
            self._names.get(state.number, {}).pop(notice.reference, None)
        if notice.event == "error" and notice.error is not None:
            fields["error"] = error_fields(notice.error)
        self._send(encode_json(fields))

    def forget(self, number: int) -> None:
        """Forget a tail that has ended; its number may be used again."""
        self._names.pop(number, None)


def page_fields(page: Page) -> dict[str, object]:
    """Records and gaps in the form of pushes and replies to reads."""
    return {"records": page.records, "gaps": page.gaps, "next_offset": page.next_offset}


def records_message(number: int, shard: str, page: Page) -> bytes:
    """A push of records."""
    return encode_json({"tail": number, "event": "records", "shard": shard, **page_fields(page)})


def unreadable_message(number: int, shard: str, page: Page) -> bytes:
    """A notice that some records cannot be encoded as JSON; the tail continues after them."""
    assert page.error is not None  # the caller has checked
    return encode_json(
        {
            "tail": number,
            "event": "unreadable",
            "shard": shard,
            "offset": page.next_offset,
            "next_offset": page.skip_offset,
            "error": error_fields(page.error),
        }
    )
