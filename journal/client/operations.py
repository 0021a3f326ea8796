"""The operations of the service that have one request and one reply. `journal.client.client` sends them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import attrs

from journal.protocol import Op, decode_reply
from journal.protocol.frames import FETCH_BODY, FetchReply, read_fetch_reply
from journal.protocol.message_codec import encode
from journal.protocol.messages import (
    CommitReply,
    CommitRequest,
    ConfigureShardRequest,
    CreateShardRequest,
    CursorCheck,
    CursorCommitRequest,
    CursorDeleteRequest,
    CursorListReply,
    CursorListRequest,
    CursorReply,
    CursorRequest,
    DescribedShard,
    DescribeShardRequest,
    Empty,
    EndClientReply,
    EndClientRequest,
    FetchIndexedRequest,
    FindOffsetReply,
    FindOffsetRequest,
    ListShardsReply,
    ListShardsRequest,
    NameRequest,
    ProducerOpenRequest,
    RollRequest,
    SetModeRequest,
    ShardBatch,
    SnapshotReply,
    StateDeleteRequest,
    StateGetReply,
    StateGetRequest,
    StatePutRequest,
    StateScanReply,
    StateScanRequest,
    TrimRequest,
)
from shards.errors import ShardNotFoundError
from shards.model import (
    AckLevel,
    Appended,
    Cursor,
    Mode,
    ProducerIdentity,
    Retention,
    SegmentInfo,
    ShardConfig,
    ShardInfo,
    StateValue,
)
from shards.position import Start

_DEFAULT_CONFIG: Final = ShardConfig()
_SEGMENTS_IN_LISTING: Final = 100
"""Shards with more segments are described one by one: each of them fills a good part of a page."""


class Operations(abc.ABC):
    """Requests with one reply.

    Those marked repeatable are sent again after a reconnect; the others raise `ConnectionLostError`, and their result
    is not known. All raise the classes of `shards.errors`, and of `journal.protocol.errors`.
    """

    @abc.abstractmethod
    async def _call(self, op: Op, message: object, *, repeat: bool = False) -> Any: ...

    @abc.abstractmethod
    async def _with_handle(self, name: str, op: Op, make_body: Callable[[int], bytes]) -> bytes | memoryview: ...

    async def ping(self) -> None:
        """Check that the server answers. Repeatable."""
        await self._call(Op.PING, Empty(), repeat=True)

    async def status(self) -> dict[str, Any]:
        """Statistics of the node. Repeatable."""
        reply: dict[str, Any] = await self._call(Op.STATUS, Empty(), repeat=True)
        return reply

    async def snapshot(self) -> SnapshotReply:
        """Have the server keep its files as they are now, for a backup, until this connection is closed.

        Returns:
            The directory on the server's machine from which they can be copied, and the last lsn that they contain.

        Raises:
            OverloadedError: Another snapshot is held already.
        """
        reply: SnapshotReply = await self._call(Op.SNAPSHOT, Empty())
        return reply

    async def create_shard(
        self, name: str, config: ShardConfig = _DEFAULT_CONFIG, *, exist_ok: bool = False
    ) -> ShardInfo:
        """Create a shard; durable when it returns. Repeatable with ``exist_ok``."""
        info: ShardInfo = await self._call(Op.CREATE_SHARD, CreateShardRequest(name, config, exist_ok), repeat=exist_ok)
        return info

    async def list_shards_page(
        self, topic_filter: str = "#", *, after: str = "", limit: int = 1000, segments: int = 0
    ) -> ListShardsReply:
        """One page of shards by name. Repeatable.

        Args:
            topic_filter: Which shards.
            after: Only shards with names behind this one.
            limit: Most shards on the page.
            segments: Shards with up to this many segments are listed with them, others without any.
        """
        request = ListShardsRequest(topic_filter, after, limit, segments)
        reply: ListShardsReply = await self._call(Op.LIST_SHARDS, request, repeat=True)
        return reply

    async def list_shards(self, topic_filter: str = "#", *, with_segments: bool = False) -> list[ShardInfo]:
        """All shards that match, sorted by name. Repeatable.

        Args:
            topic_filter: Which shards.
            with_segments: Whether each has its segments. They come with the pages of shards; a shard with very many is
                requested by itself, and left out if it was deleted meanwhile.
        """
        shards: list[ShardInfo] = []
        after = ""
        while True:
            page = await self.list_shards_page(
                topic_filter, after=after, segments=_SEGMENTS_IN_LISTING if with_segments else 0
            )
            for info in page.shards:
                if with_segments and not info.segments and info.next_offset > info.start_offset:
                    with suppress(ShardNotFoundError):
                        shards.append(await self.describe_shard(info.name))
                else:
                    shards.append(info)
            if not page.more or not page.shards:
                return shards
            after = page.shards[-1].name

    async def describe_shard(self, name: str) -> ShardInfo:
        """A shard with its segments, page by page. Repeatable.

        Changes between two pages (segments that are closed, converted or trimmed) are shown as of the later page.
        """
        segments: list[SegmentInfo] = []
        shard_id = 0
        while True:
            from_offset = segments[-1].next_offset if segments else 0
            request = DescribeShardRequest(name, from_offset)
            page: DescribedShard = await self._call(Op.DESCRIBE_SHARD, request, repeat=True)
            if segments and page.shard_id != shard_id:
                # The shard was deleted and created again: the pages before belong to the old one.
                segments.clear()
                continue
            shard_id = page.shard_id
            segments += page.segments
            if not page.more or not page.segments:
                fields = {field.name: getattr(page, field.name) for field in attrs.fields(ShardInfo)}
                return ShardInfo(**{**fields, "segments": tuple(segments)})

    async def delete_shard(self, name: str) -> None:
        """Delete a shard with its records and cursors; durable when it returns."""
        await self._call(Op.DELETE_SHARD, NameRequest(name))

    async def set_mode(self, name: str, mode: Mode) -> ShardInfo:
        """Choose the kind of the next segment; durable when it returns. Repeatable."""
        info: ShardInfo = await self._call(Op.SET_MODE, SetModeRequest(name, mode), repeat=True)
        return info

    async def configure_shard(
        self, name: str, *, retention: Retention | None = None, segment_bytes: int | None = None
    ) -> ShardInfo:
        """Change the given settings. Repeatable."""
        request = ConfigureShardRequest(name, retention, segment_bytes)
        info: ShardInfo = await self._call(Op.CONFIGURE_SHARD, request, repeat=True)
        return info

    async def roll(self, name: str) -> ShardInfo:
        """Close the active segment; the next append opens another. Durable when it returns."""
        info: ShardInfo = await self._call(Op.ROLL, NameRequest(name), repeat=False)
        return info

    async def convert(self, name: str) -> ShardInfo:
        """Roll, and return when every closed log segment of the shard is a Parquet file. Repeatable.

        Raises:
            ConversionFailedError: A segment could not be converted this time; it stays a log file.
            InvalidRequestError: Conversion is disabled on the server.
        """
        info: ShardInfo = await self._call(Op.ROLL, RollRequest(name, wait=True), repeat=True)
        return info

    async def trim(self, name: str, before_offset: int) -> ShardInfo:
        """Drop the records below an offset. Repeatable."""
        info: ShardInfo = await self._call(Op.TRIM, TrimRequest(name, before_offset), repeat=True)
        return info

    async def fetch(self, shard: str, offset: int, *, max_bytes: int = 1 << 20, max_wait_s: float = 0.0) -> FetchReply:
        """Read whole batches, beginning with the one that holds ``offset``; skip the records in it below ``offset``.

        Returns:
            Batches, one after another, possibly more than ``max_bytes`` if the first is larger; none if nothing was
            appended within ``max_wait_s``. The next read begins at ``next_offset``. Repeatable.

        Raises:
            OffsetOutOfRangeError: The offset is outside of the shard; the error has the valid range.
        """

        def body(handle: int) -> bytes:
            return FETCH_BODY.pack(handle, max_bytes, offset, int(max_wait_s * 1000))

        return read_fetch_reply(await self._with_handle(shard, Op.FETCH, body))

    async def find_offset(self, shard: str, start: Start) -> int:
        """Resolve a position to an offset of this shard. Repeatable."""
        at = start.kind
        if at == "offset":
            return start.value
        kind: Literal["earliest", "latest", "time", "lsn"] = at
        body = await self._with_handle(
            shard, Op.FIND_OFFSET, lambda handle: encode(FindOffsetRequest(handle, kind, start.value))
        )
        found: FindOffsetReply = decode_reply(Op.FIND_OFFSET, body)
        return found.offset

    async def fetch_indexed(
        self,
        shard: str,
        by: Literal["key", "tag"],
        word: bytes,
        *,
        from_offset: int = 0,
        max_bytes: int = 1 << 20,
        latest: bool = False,
    ) -> FetchReply:
        """Read batches that hold records of a key or tag, and others: the caller has to filter. Repeatable.

        Raises:
            IndexMissingError: The shard was created without this index.
        """
        body = await self._with_handle(
            shard,
            Op.FETCH_INDEXED,
            lambda handle: encode(FetchIndexedRequest(handle, by, word, from_offset, max_bytes, latest)),
        )
        return read_fetch_reply(body)

    async def get_cursor(self, shard: str, name: str) -> Cursor | None:
        """A cursor, None if it does not exist. Repeatable."""
        reply: CursorReply = await self._call(Op.CURSOR_GET, CursorRequest(shard, name), repeat=True)
        return reply.cursor

    async def list_cursors(self, shard: str) -> list[Cursor]:
        """All cursors of a shard, page by page, sorted by the bytes of their names. Repeatable."""
        cursors: list[Cursor] = []
        while True:
            request = CursorListRequest(shard, cursors[-1].name if cursors else "")
            page: CursorListReply = await self._call(Op.CURSOR_LIST, request, repeat=True)
            cursors += page.cursors
            if not page.more or not page.cursors:
                return cursors

    async def commit_cursor(self, shard: str, name: str, offset: int, *, expected_version: int | None = None) -> Cursor:
        """Set a cursor; durable when it returns.

        Raises:
            VersionConflictError: ``expected_version`` (0: it must not exist) is not its version.
        """
        cursor: Cursor = await self._call(Op.CURSOR_COMMIT, CursorCommitRequest(shard, name, offset, expected_version))
        return cursor

    async def delete_cursor(self, shard: str, name: str, *, expected_version: int | None = None) -> None:
        """Delete a cursor; durable when it returns."""
        await self._call(Op.CURSOR_DELETE, CursorDeleteRequest(shard, name, expected_version))

    async def get_state(self, key: bytes) -> StateValue | None:
        """A value of the state store, None if it does not exist. Repeatable."""
        reply: StateGetReply = await self._call(Op.STATE_GET, StateGetRequest(key), repeat=True)
        return reply.value

    async def put_state(
        self, key: bytes, value: bytes, *, expected_version: int | None = None, expires_at_us: int = 0
    ) -> StateValue:
        """Set a state value; durable when it returns.

        Raises:
            VersionConflictError: ``expected_version`` (0: it must not exist) is not its version.
        """
        request = StatePutRequest(key, value, expected_version, expires_at_us)
        stored: StateValue = await self._call(Op.STATE_PUT, request)
        return stored

    async def delete_state(self, key: bytes, *, expected_version: int | None = None) -> None:
        """Delete a state value; durable when it returns."""
        await self._call(Op.STATE_DELETE, StateDeleteRequest(key, expected_version))

    async def scan_state_page(self, prefix: bytes, *, after: bytes | None = None, limit: int = 1000) -> StateScanReply:
        """One page of state values whose keys begin with ``prefix``. Repeatable."""
        reply: StateScanReply = await self._call(Op.STATE_SCAN, StateScanRequest(prefix, after, limit), repeat=True)
        return reply

    async def commit(
        self,
        appends: Sequence[tuple[str, bytes]],
        puts: Sequence[StatePutRequest],
        deletes: Sequence[StateDeleteRequest],
        cursors: Sequence[CursorCheck] = (),
    ) -> tuple[list[Appended], list[StateValue]]:
        """Append batches and change state atomically; durable when it returns.

        Appends that were acknowledged before are stored before it; the order of unacknowledged ones is not defined.

        Returns:
            The results of the appends and of the puts, in their order.

        Raises:
            VersionConflictError: A key has another version than expected; nothing was changed.
            CursorConflictError: One of ``cursors`` is after its ``max_offset``; nothing was changed.
            ConnectionLostError: It is not known whether the changes were made; the versions of the keys show it.
        """
        batches = [ShardBatch(shard, batch) for shard, batch in appends]
        request = CommitRequest(batches, list(puts), list(deletes), list(cursors))
        reply: CommitReply = await self._call(Op.COMMIT, request)
        appended = [Appended(one.base_offset, AckLevel(one.level)) for one in reply.appended]
        values = [attrs.evolve(stored, value=put.value) for stored, put in zip(reply.values, puts, strict=True)]
        return appended, values

    async def end_client(self, name: str) -> int:
        """End the connections of the client with this name, and with them its subscriptions. Repeatable.

        Returns:
            The number of connections that were ended.
        """
        reply: EndClientReply = await self._call(Op.END_CLIENT, EndClientRequest(name), repeat=True)
        return reply.connections

    async def open_producer(self, name: str) -> ProducerIdentity:
        """Register a producer, or raise its epoch, which fences clients with an older one. Not needed for `append`."""
        identity: ProducerIdentity = await self._call(Op.PRODUCER_OPEN, ProducerOpenRequest(name))
        return identity
