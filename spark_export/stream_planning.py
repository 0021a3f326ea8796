"""The records that a micro-batch reads of each shard, and the errors for records that are gone.

Pure: positions and snapshots in, positions and ranges out. Positions are only advanced in this module.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import attrs

from shards.history import common_lsn
from spark_export.errors import DataLossError
from spark_export.options import SourceOptions
from spark_export.planning import ShardRange, batch_ranges
from spark_export.positions import Position, StreamPosition
from spark_export.read_history import lower_lsn
from spark_export.snapshot import ShardSnapshot, Snapshot

_LOGGER: Final = logging.getLogger(__name__)


def first_position(snapshot: Snapshot, options: SourceOptions) -> StreamPosition:
    """The position where a new query begins.

    Raises:
        OptionError: An option names a shard that does not exist, or an offset past its end.
        DataLossError: Wanted records were trimmed, and the options make that an error.
    """
    return StreamPosition(
        {
            # An empty shard needs no position: a shard without one is read from its first record on.
            one.shard.name: Position(one.shard.shard_id, min(one.first_offset, one.shard.next_offset))
            for one in batch_ranges(snapshot, options)
            if one.shard.next_offset
        },
        restores=snapshot.store.restores or (),
    )


def end_position(snapshot: Snapshot) -> StreamPosition:
    """The position after all present records."""
    return StreamPosition(
        {shard.name: Position(shard.shard_id, shard.next_offset) for shard in snapshot.shards if shard.next_offset},
        restores=snapshot.store.restores or (),
    )


def next_position(
    start: StreamPosition, snapshot: Snapshot, options: SourceOptions, max_records: int | None
) -> StreamPosition:
    """The position where the micro-batch after a position ends; ``start`` itself if there is nothing new.

    Args:
        start: The present position of the query.
        snapshot: The present shards.
        options: Which shards the query reads, and whether a loss is an error.
        max_records: Most records of the micro-batch; None for no limit.

    Raises:
        DataLossError: Records after the position are gone, and the options make that an error.
    """
    there = {shard.name for shard in snapshot.shards}
    restores = start.restores if snapshot.store.restores is None else snapshot.store.restores
    lsn = common_lsn(start.restores, restores)

    def unseen(place: Position) -> Position:
        return Position(place.shard_id, place.next_offset, None, lower_lsn(place.common_lsn, lsn))

    # Shards that the query does not read (any more) keep their position, because it may read them again.
    kept = {name: unseen(one) for name, one in start.shards.items() if not options.wants_shard(name)}
    # So do shards that are missing: no later shard has their id.
    missing = {name: unseen(one) for name, one in start.missing.items() if name not in there}
    for name, one in start.shards.items():
        if name not in there and name not in kept:
            _report_loss(
                options,
                f"shard {name!r} (id {one.shard_id}), which was read up to offset {one.next_offset}, is not there any "
                f"more: it was deleted, or all of its segments were removed",
                "to continue without it",
            )
            missing[name] = unseen(one)
    begun = {shard.name: _begin(shard, _place(shard, start), options) for shard in snapshot.shards}
    counts = {shard.name: shard.record_count_from(begun[shard.name]) for shard in snapshot.shards}
    waiting = {name: count for name, count in counts.items() if count}
    given, after = (waiting, "") if max_records is None else fair_shares(waiting, max_records, start.after)
    for shard in snapshot.shards:
        if shard.next_offset:
            place = start.of(shard.name, shard.shard_id)
            first = begun[shard.name]
            end = shard.offset_behind(first, given.get(shard.name, 0))
            goes_back = place is not None and first < min(place.next_offset, end)
            # Sealed segments do not show restores.
            lsn_kept = place.common_lsn if place is not None and snapshot.store.restores is None else None
            kept[shard.name] = Position(shard.shard_id, end, first if goes_back else None, lsn_kept)
    before = {name: attrs.evolve(one, first_offset=None) for name, one in start.shards.items()}
    if kept == before and missing == start.missing and restores == start.restores:
        return start
    return StreamPosition(kept, after, missing, restores)


def records_behind(position: StreamPosition, snapshot: Snapshot) -> int:
    """Number of records after a position; offsets whose records were lost with the memory are not counted."""
    count = 0
    for shard in snapshot.shards:
        place = position.of(shard.name, shard.shard_id)
        count += shard.record_count_from(0 if place is None else place.next_offset)
    return count


def fair_shares(waiting: Mapping[str, int], most: int, after: str) -> tuple[dict[str, int], str]:
    """Divide a limited number of records among shards, so that no shard has to wait for another.

    Each gets an equal share, and what some do not need goes to the others. If there are more shards than records, the
    next ones by name get one record each.

    Args:
        waiting: Number of new records by shard.
        most: Limit of all records together.
        after: The shard that was served last.

    Returns:
        The number of records to read by shard; and the shard that was served last, empty if all were.
    """
    if most < len(waiting):
        names = sorted(waiting)
        in_turn = [name for name in names if name > after] + [name for name in names if name <= after]
        return dict.fromkeys(in_turn[:most], 1), in_turn[most - 1]
    left = most
    given = {}
    for served, (name, count) in enumerate(sorted(waiting.items(), key=lambda one: one[1])):
        # Fewest first: what a shard does not need is shared by all that follow.
        given[name] = min(count, left // (len(waiting) - served))
        left -= given[name]
    return given, ""


def changed_shards(start: StreamPosition, end: StreamPosition) -> list[str]:
    """The shards with records to read between two positions."""
    return [name for name, one in end.shards.items() if one.next_offset > start.first_offset(name, one)]


def stream_ranges(
    start: StreamPosition, end: StreamPosition, snapshot: Snapshot, options: SourceOptions
) -> list[ShardRange]:
    """The ranges between two positions, in the present shards.

    Raises:
        DataLossError: Some records are gone, and the options make that an error.
    """
    there = {shard.name: shard for shard in snapshot.shards}
    ranges = []
    for name in changed_shards(start, end):
        to = end.shards[name]
        first = start.first_offset(name, to)
        wanted = f"shard {name!r} (id {to.shard_id}): offsets {first} up to (not with) {to.next_offset} are to be read"
        shard = there.get(name)
        if shard is None or shard.shard_id != to.shard_id:
            found = (
                "there is no such shard any more"
                if shard is None
                else f"the one of that name now has id {shard.shard_id}"
            )
            _report_loss(options, f"{wanted}, but {found}", "to continue without them")
            continue
        if shard.next_offset < to.next_offset:
            _report_loss(
                options,
                f"{wanted}, but {_held(shard)}: the store was set back to an older state",
                "to continue with what is there",
            )
        if shard.start_offset > first:
            _report_loss(
                options,
                f"{wanted}, but {_held(shard)}: the records below were trimmed",
                _continue_at(shard.start_offset),
            )
        end_offset = min(to.next_offset, shard.next_offset)
        changed = shard.changed_offset
        if changed is not None and changed < to.next_offset:
            _report_loss(
                options, f"{wanted}, but {_restored(changed)}", f"to continue with these from offset {changed}"
            )
            # They are read by the next micro-batch.
            end_offset = min(end_offset, changed)
        first = max(first, shard.start_offset)
        ranges.append(ShardRange(shard, first, max(first, end_offset)))
    return ranges


def _place(shard: ShardSnapshot, start: StreamPosition) -> Position | None:
    """How far the shard was read, or an earlier one of its name whose loss was not reported yet."""
    return start.shards.get(shard.name) or start.of(shard.name, shard.shard_id)


def _begin(shard: ShardSnapshot, position: Position | None, options: SourceOptions) -> int:
    """Offset from which to continue in an existing shard."""
    first = 0 if position is None else position.next_offset
    if position is not None and position.shard_id != shard.shard_id:
        _report_loss(
            options,
            f"shard {shard.name!r} was deleted and created again: the one with id {position.shard_id} was read up to "
            f"offset {first} and is gone, the one with id {shard.shard_id} is another ({_held(shard)})",
            _continue_at(shard.start_offset),
        )
        return shard.start_offset
    changed = shard.changed_offset
    if position is not None and changed is not None and changed < first:
        _report_loss(
            options,
            f"shard {shard.name!r} (id {shard.shard_id}) was read up to offset {first}, but {_restored(changed)}",
            f"to read these as well, from offset {changed} on",
        )
        return max(changed, shard.start_offset)
    if first > shard.next_offset:
        _report_loss(
            options,
            f"shard {shard.name!r} (id {shard.shard_id}) was read up to offset {first}, but {_held(shard)}: the store "
            f"was set back to an older state",
            f"to continue with what is appended from offset {shard.next_offset} on",
        )
        return shard.next_offset
    if first < shard.start_offset:
        _report_loss(
            options,
            f"shard {shard.name!r} (id {shard.shard_id}) is to be read from offset {first} on, but {_held(shard)}: the "
            f"records below were trimmed",
            _continue_at(shard.start_offset),
        )
        return shard.start_offset
    return first


def _restored(offset: int) -> str:
    return (
        f"its node was restored from a backup since then: from offset {offset} on it holds other records than those "
        "before"
    )


def _held(shard: ShardSnapshot) -> str:
    return f"it holds offsets from {shard.start_offset} up to but not including {shard.next_offset}"


def _continue_at(offset: int) -> str:
    return f"to continue from offset {offset}, the first that is there"


def _report_loss(options: SourceOptions, what: str, way_out: str) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}; {way_out}, set failOnDataLoss to false")
    _LOGGER.warning("%s; failOnDataLoss is false, so the query continues without", what)
