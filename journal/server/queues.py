"""Cache queues in the console and the administration API: waiting records, driver, and state of the sink.

A queue is a shard below ``$queue/`` and the entries about it that brokers and drivers write into the state store. They
define the format of these entries (docs/formats.md, "Cache queues"); only the first fields of each, which never change,
are read here.
"""

from __future__ import annotations

from typing import Final, TypeVar

import attrs
import msgspec

from journal.access.rights import Operation
from journal.engine import Engine
from journal.engine.time_slice import TimeSlice
from journal.server.shard_operations import Requester, ShardOperations
from shards.model import ShardInfo
from shards.segments.shard import Shard
from shards.topics.names import (
    DEAD_LETTERS_SUFFIX,
    QUEUE_CURSOR,
    QUEUE_DEFINITIONS,
    QUEUE_LEASES,
    QUEUE_LETTERS_DONE,
    QUEUE_PREFIX,
    QUEUE_PROGRESS,
    QUEUE_STATUSES,
)

_FORMAT: Final = b"\x01"
_SILENT_AFTER_US: Final = 25_000_000
"""A driver reports at least every ten seconds, except one that drains a queue once."""

_Form = TypeVar("_Form", bound=msgspec.Struct)


class _Definition(msgspec.Struct, array_like=True, frozen=True):
    queue_id: str
    shard_id: int
    settings: dict[str, str | int]
    is_paused: bool = False


class _Lease(msgspec.Struct, array_like=True, frozen=True):
    holder: str


class _Progress(msgspec.Struct, array_like=True, frozen=True):
    shard_id: int
    offset: int = 0


class _LettersDone(msgspec.Struct, array_like=True, frozen=True):
    shard_id: int
    next_offset: int


class _Status(msgspec.Struct, array_like=True, frozen=True):
    holder: str
    state: str
    since_us: int
    reason: str
    next_attempt_us: int
    counts: tuple[int, ...]
    counted_offset: int
    in_rate: float
    out_rate: float
    updated_us: int


@attrs.frozen(slots=True)
class QueueInfo:
    """A cache queue and its state.

    Attributes:
        name: Name of the queue.
        shard: Name of the shard with the waiting records.
        shard_id: Id of the shard.
        state: ``ok``: the sink accepts records; ``down``: it is not available; ``retrying``: it is being tried again;
            ``starting``, ``draining`` and ``idle`` of drivers that begin or drain once; ``paused``; ``not driven``;
            ``unknown`` if only the shard of the queue is known.
        reason: Why the sink is not available, or why no driver runs the queue; empty otherwise.
        since_us: Since when the driver is in this state, 0 if it is not known.
        next_attempt_us: When the sink is tried again, 0 if that is not planned.
        driver: The process that drives the queue, if there is one.
        start_offset: First offset of the shard.
        next_offset: Offset of the next record that is added.
        record_count: Number of records in the shard, whether processed or not.
        offset: All records below it are processed.
        waiting_records: Number of records from there on, without those that were lost with the memory.
        size_bytes: Size of the queue's segments.
        in_rate: Records added per second, as last reported by the driver; None without a recent report.
        out_rate: Records delivered per second, likewise.
        dead_letter_records: Number of records that the sink refused and that are kept.
    """

    name: str
    shard: str
    shard_id: int
    state: str
    reason: str
    since_us: int
    next_attempt_us: int
    driver: str
    start_offset: int
    next_offset: int
    record_count: int
    offset: int
    waiting_records: int
    size_bytes: int
    in_rate: float | None
    out_rate: float | None
    dead_letter_records: int


@attrs.frozen(slots=True)
class QueuePage:
    """A page of queues, sorted by name.

    Attributes:
        queues: Queues of the examined shards.
        more: There are more shards to examine.
        after: The last shard that was examined, for the next page.
    """

    queues: list[QueueInfo]
    more: bool
    after: str


class QueueOperations:
    """Describes the queues of one engine.

    Args:
        engine: The engine with their shards and states.
        shards: Lists the shards that a principal may see.
    """

    def __init__(self, engine: Engine, shards: ShardOperations) -> None:
        self._engine = engine
        self._shards = shards

    async def list_queues(self, requester: Requester, after: str, limit: int) -> QueuePage:
        """The queues among up to ``limit`` shards below ``$queue/`` after ``after``, sorted by name.

        Raises:
            NotAuthorizedError: The principal may not read all queues.
        """
        page = await self._shards.list_shards(
            requester, f"{QUEUE_PREFIX}#", after, limit, operation=Operation.LIST_QUEUES
        )
        queues: list[QueueInfo] = []
        step = TimeSlice()
        for info in page.shards:
            if info.name.endswith(DEAD_LETTERS_SUFFIX):
                continue
            if (shard := self._engine.peek(info.shard_id)) is not None:
                queues.append(self._look(info, shard))
            if step.is_over:
                await step.rest()
        return QueuePage(queues, page.more, page.shards[-1].name if page.shards else after)

    def _look(self, info: ShardInfo, shard: Shard) -> QueueInfo:
        name = info.name.removeprefix(QUEUE_PREFIX)
        definition = self._read(_Definition, QUEUE_DEFINITIONS, name)
        status = self._read(_Status, QUEUE_STATUSES, name)
        lease = self._read(_Lease, QUEUE_LEASES, name)
        holder = lease.holder if lease is not None else ""
        silent_us = self._silent_us(holder, status)
        is_driven = bool(holder) and not silent_us
        is_told = is_driven and status is not None and status.holder == holder
        if definition is None:
            state = "unknown"
        elif definition.is_paused:
            state = "paused"
        elif not is_driven:
            state = "not driven"
        else:
            state = status.state if is_told and status is not None else "starting"
        told = status if is_told else None
        offset = max(info.start_offset, self._done_offset(info, name))
        return QueueInfo(
            name=name,
            shard=info.name,
            shard_id=info.shard_id,
            state=state,
            reason=f"{holder} has not reported for {silent_us // 1_000_000} s" if silent_us else _reason(told),
            since_us=told.since_us if told is not None else 0,
            next_attempt_us=told.next_attempt_us if told is not None else 0,
            driver=holder if is_driven else "",
            start_offset=info.start_offset,
            next_offset=info.next_offset,
            record_count=info.record_count,
            offset=offset,
            waiting_records=shard.record_count_from(offset),
            size_bytes=info.size_bytes,
            in_rate=told.in_rate if told is not None else None,
            out_rate=told.out_rate if told is not None else None,
            dead_letter_records=self._dead_letters(info.name + DEAD_LETTERS_SUFFIX, name),
        )

    def _silent_us(self, holder: str, status: _Status | None) -> int:
        """How long the holder of the lease has not reported; 0 if that is a short time."""
        if not holder or status is None or status.state == "draining":
            return 0
        silent_us = self._engine.now_us() - status.updated_us
        return silent_us if silent_us >= _SILENT_AFTER_US else 0

    def _done_offset(self, info: ShardInfo, name: str) -> int:
        progress = self._read(_Progress, QUEUE_PROGRESS, name)
        if progress is not None and progress.shard_id == info.shard_id:
            return progress.offset
        cursor = self._engine.cursor_of(info.shard_id, QUEUE_CURSOR)
        return cursor.offset if cursor is not None else 0

    def _dead_letters(self, shard_name: str, name: str) -> int:
        shard_id = self._engine.shard_id(shard_name)
        shard = None if shard_id is None else self._engine.peek(shard_id)
        if shard is None:
            return 0
        done = self._read(_LettersDone, QUEUE_LETTERS_DONE, name)
        first = done.next_offset if done is not None and done.shard_id == shard.shard_id else 0
        return shard.record_count_from(first)

    def _read(self, form: type[_Form], prefix: bytes, name: str) -> _Form | None:
        """The state entry about a queue; None if it does not exist, or has the format of a newer program."""
        found = self._engine.get_state(prefix + name.encode())
        if found is None or found.value[:1] != _FORMAT:
            return None
        try:
            return msgspec.msgpack.decode(memoryview(found.value)[1:], type=form)
        except msgspec.DecodeError:
            # Clients with the right to write there may write anything; then the state is shown as unknown.
            return None


def _reason(status: _Status | None) -> str:
    return status.reason if status is not None else ""
