"""Reading again the messages that are under way to a client that returns: the window has only their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.message import Message, message_of
from broker_adapter.mqtt.origin import Origin
from broker_adapter.mqtt.session.outbound_window import InFlight
from broker_adapter.mqtt.session.retained import RETAINED_SHARD_PREFIX, Retained
from shards.errors import OffsetOutOfRangeError, ShardDamagedError, ShardNotFoundError
from shards.record import StoredRecord

_NEAR_RECORDS: Final = 256
"""Places that are no farther apart are read in one go."""

_READ_BYTES: Final = 1 << 20


async def messages_under_way(
    adapter: StorageAdapter, retained: Retained, entries: Iterable[InFlight]
) -> dict[int, Message]:
    """The messages of a window's entries, by packet identifier.

    One that is missing is no longer in the store: trimmed, expired, deleted with its shard, or lost with its node; a
    retained one is missing when another has taken its place. Say so to the window (`OutboundWindow.gone`).
    """
    by_shard: dict[str, list[InFlight]] = {}
    found: dict[int, Message] = {}
    for entry in entries:
        if entry.origin is Origin.RETAINED:
            message = await retained.get(entry.shard.removeprefix(RETAINED_SHARD_PREFIX))
            if message is not None and message.lsn == entry.lsn:
                found[entry.packet_id] = message
        else:
            by_shard.setdefault(entry.shard, []).append(entry)
    for shard, of_shard in by_shard.items():
        of_shard.sort(key=lambda entry: entry.offset)
        for run in _runs(of_shard):
            await _read(adapter, shard, run, found)
    return found


def _runs(entries: Sequence[InFlight]) -> Iterator[list[InFlight]]:
    run: list[InFlight] = []
    for entry in entries:
        if run and entry.offset - run[-1].offset > _NEAR_RECORDS:
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


async def _read(adapter: StorageAdapter, shard: str, run: list[InFlight], found: dict[int, Message]) -> None:
    # Several entries of one place: a message may have been sent for two of the client's subscriptions.
    wanted: dict[int, list[InFlight]] = {}
    for entry in run:
        wanted.setdefault(entry.offset, []).append(entry)
    offset, last_offset = run[0].offset, run[-1].offset
    while offset <= last_offset:
        try:
            result = await adapter.read(
                shard, offset, max_bytes=_READ_BYTES, max_records=last_offset - offset + 1, max_wait_s=0
            )
        except OffsetOutOfRangeError as error:
            if error.start_offset <= offset:
                return  # the shard ends before: it is another one of the same name
            offset = error.start_offset
            continue
        except (ShardNotFoundError, ShardDamagedError):
            return
        for record in result.records:
            if isinstance(record, StoredRecord):
                for entry in wanted.get(record.offset, ()):
                    if entry.lsn == record.lsn:
                        found[entry.packet_id] = message_of(shard, record)
        if result.next_offset <= offset:
            return
        offset = result.next_offset
