"""The whole history of a journal as one data frame: sealed segments by Spark's Parquet reader, the rest by the source.

One snapshot decides where one ends and the other begins in each shard, so that no record is missing and none is read
twice, even if segments are sealed while the query runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from shards.history import HistoryGap, common_lsn
from spark_export import planning
from spark_export.discovery import take_snapshot
from spark_export.driver_rows import driver_rows
from spark_export.errors import DataLossError
from spark_export.file_choice import ListedFiles, ShardRange, chosen_files
from spark_export.options import SourceOptions, parse_options
from spark_export.planning import Part
from spark_export.read_history import ReadHistory, lower_lsn
from spark_export.sealed_scan import TABLE_COLUMNS, SealedTree, list_tree, scan, with_date
from spark_export.server_connection import ServerConnection
from spark_export.snapshot import ShardSnapshot, Snapshot, Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOGGER: Final = logging.getLogger(__name__)
_MOST_NAMES: Final = 500
"""Up to this many shards are named to the data source; otherwise all are read, and the others dropped."""


@attrs.frozen(slots=True)
class Origin:
    """Where to read, and which records.

    Attributes:
        path: A data directory or a tree of sealed segments; empty if there is only a server.
        server: URL of a server; empty if there is only a path.
        topics: Filters; records of topics that match one of them are read.
        shards: Filters; only shards that match one of them are read.
        fail_on_data_loss: Whether missing records are an error; otherwise they are skipped.
    """

    path: str = ""
    server: str = ""
    topics: tuple[str, ...] = ("#",)
    shards: tuple[str, ...] = ("#",)
    fail_on_data_loss: bool = True

    def options(self) -> dict[str, str]:
        """The same as options of the data source."""
        given = {"path": self.path, "server": self.server}
        return {
            **{name: value for name, value in given.items() if value},
            "topics": json.dumps(self.topics),
            "shards": json.dumps(self.shards),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        }


@attrs.frozen(slots=True)
class Reached:
    """How far a shard was read.

    Attributes:
        shard_id: The shard's id: a shard that was deleted and created again is read from its beginning.
        next_offset: Offset after the last one that was read.
        common_lsn: See `ReadHistory.common_lsns`; None for a shard whose records were compared.
    """

    shard_id: int
    next_offset: int
    common_lsn: int | None = None


@attrs.frozen(slots=True)
class Places:
    """How far all shards were read.

    Attributes:
        reached: By name, for the shards that existed at the last run.
        missing: The same for shards that did not exist, a loss that was accepted. A shard that comes back is read from
            there on, because no later shard has its id.
        restores: Restores from backups that the store knew.
    """

    reached: Mapping[str, Reached] = attrs.field(factory=dict, hash=False)
    missing: Mapping[str, Reached] = attrs.field(factory=dict, hash=False)
    restores: tuple[HistoryGap, ...] = ()

    @property
    def read_history(self) -> ReadHistory:
        """The history of the store to which the records read so far belong."""
        places = {**self.missing, **self.reached}
        lsns = {name: one.common_lsn for name, one in places.items() if one.common_lsn is not None}
        return ReadHistory(self.restores, lsns)


@attrs.frozen
class History:
    """The offsets to read of every shard.

    Attributes:
        tree: The sealed segments, as they were listed after the snapshot; None without a path.
        ranges: The shards that have something to read.
        places: Where the ranges end; also for shards with nothing to read.
        passes_over_loss: Whether missing records are skipped here for the first time.
        store: Where tasks read.
        rest: What the data source reads of the ranges.
    """

    origin: Origin
    tree: SealedTree | None
    ranges: tuple[ShardRange, ...]
    places: Places
    passes_over_loss: bool
    store: Store
    rest: tuple[Part, ...]

    @property
    def source_options(self) -> SourceOptions:
        """Options with which the data source reads them."""
        return parse_options(self.origin.options(), "batch")

    def require_unchanged(self) -> None:
        """Check that the server, if there is one, was not restored from a backup since this was planned.

        Raises:
            UnreadableError: It was, so records may be of two histories; or it cannot be reached.
        """
        if self.store.server:
            with ServerConnection(self.store.server, self.store.restores) as connection:
                connection.require()

    def read(
        self, spark: SparkSession, columns: Sequence[str] = TABLE_COLUMNS, *, reads_few_at_once: bool = False
    ) -> DataFrame:
        """The records of all ranges.

        Args:
            spark: The session.
            columns: Which columns.
            reads_few_at_once: Read unsealed records immediately in the driver, if there are few; see
                `spark_export.driver_rows`.

        Raises:
            DataLossError: Records were to be read immediately, and are gone.
            UnreadableError: Records were to be read immediately, and cannot be read.
        """
        frames = []
        if self.tree is not None or not self.ranges:
            tree = self.tree or SealedTree("")
            frames.append(_scan_files(spark, tree, self.ranges, self.origin, columns))
        rest = [one for one in self.ranges if one.sealed_end < one.next_offset]
        if rest or not frames:
            few = None
            if reads_few_at_once:
                few = driver_rows(spark, self.store, self.rest, self.source_options)
            unsealed = _read_rest(spark, self.origin, rest) if few is None else few
            frames.append(with_date(unsealed).select(*columns))
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.unionByName(other)
        return frame


def take_history(spark: SparkSession, origin: Origin, since: Places | None = None) -> History:
    """Plan what is to be read now.

    Args:
        spark: Session for listing the sealed segments.
        since: How far the shards were read already; None if nothing was read.

    Raises:
        DataLossError: Records after that are gone, and the origin makes that an error.
        OptionError: The origin is not valid.
        UnreadableError: The path has no shards, or the server cannot be reached.
    """
    read = None if since is None else since.read_history
    snapshot = take_snapshot(parse_options(origin.options(), "batch"), read=read)
    # After the snapshot: segments sealed at that time are in this listing, unless they were trimmed since.
    tree = list_tree(spark, origin.path) if origin.path else None
    return plan_history(snapshot, tree, origin, since)


def plan_history(snapshot: Snapshot, tree: SealedTree | None, origin: Origin, since: Places | None) -> History:
    """Plan what is to be read of a snapshot; see `take_history`."""
    losses = _Losses(fail=origin.fail_on_data_loss)
    listed = ListedFiles(tree)
    ranges = []
    rest = []
    reached: dict[str, Reached] = {}
    before = since or Places()
    restores = before.restores if snapshot.store.restores is None else snapshot.store.restores
    missing = _missing(snapshot, before, losses, None if since is None else common_lsn(before.restores, restores))
    for shard in snapshot.shards:
        first = shard.start_offset if since is None else _first_offset(snapshot, shard, since, losses)
        end = max(first, shard.next_offset)
        reached[shard.name] = Reached(shard.shard_id, end, _common_lsn(snapshot, shard, before))
        if first == end:
            continue
        sealed = listed.leading(shard)
        sealed_end = max(first, sealed[-1].next_offset) if sealed else first
        ranges.append(listed.range_of(shard, sealed, first, sealed_end, end))
        rest.append(planning.ShardRange(shard, sealed_end, end))
    return History(
        origin,
        tree,
        tuple(ranges),
        Places(reached, missing, restores),
        losses.found,
        snapshot.store,
        tuple(planning.parts_of(rest)),
    )


class _Losses:
    """Records that are gone before they were read: an error, or skipped with a warning."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self.found = False

    def add(self, what: str, way_out: str) -> None:
        if self._fail:
            raise DataLossError(f"{what}; {way_out}, turn failing on data loss off for a run")
        _LOGGER.warning("%s; failing on data loss is off, so this is skipped", what)
        self.found = True


def _missing(snapshot: Snapshot, since: Places, losses: _Losses, lsn: int | None) -> dict[str, Reached]:
    """Places of shards that were read before and do not exist now; ``lsn``: up to there the history is the same."""
    there = {shard.name for shard in snapshot.shards}
    missing = {name: one for name, one in since.missing.items() if name not in there}
    for name, one in since.reached.items():
        if name not in there:
            losses.add(
                f"shard {name!r} (id {one.shard_id}), which was read up to offset {one.next_offset}, is not there any "
                "more: it was deleted, or all of its segments were removed",
                "to continue without it",
            )
            missing[name] = one
    return {name: attrs.evolve(one, common_lsn=lower_lsn(one.common_lsn, lsn)) for name, one in missing.items()}


def _common_lsn(snapshot: Snapshot, shard: ShardSnapshot, since: Places) -> int | None:
    """The common lsn to keep for a shard: sealed segments do not show restores, a later run with a server may."""
    place = since.reached.get(shard.name) or since.missing.get(shard.name)
    if snapshot.store.restores is None and place is not None and place.shard_id == shard.shard_id:
        return place.common_lsn
    return None


def _first_offset(snapshot: Snapshot, shard: ShardSnapshot, since: Places, losses: _Losses) -> int:
    """Where to continue in a shard, in a later run."""
    held = f"it holds offsets from {shard.start_offset} up to but not including {shard.next_offset}"
    place = since.reached.get(shard.name)
    if place is not None and place.shard_id != shard.shard_id:
        losses.add(
            f"shard {shard.name!r} was deleted and created again: the one with id {place.shard_id} was read up to "
            f"offset {place.next_offset} and is gone, the one with id {shard.shard_id} is another ({held})",
            f"to continue with that one from offset {shard.start_offset}",
        )
        return shard.start_offset
    if place is None:
        place = since.missing.get(shard.name)
        if place is not None and place.shard_id != shard.shard_id:
            # The loss of the earlier shard was accepted already.
            place = None
    if place is None:
        # A tree of sealed segments does not have unsealed records either.
        if shard.start_offset and snapshot.knows_unsealed:
            losses.add(
                f"shard {shard.name!r} was created after the last run, and its records below offset "
                f"{shard.start_offset} were trimmed before they were read",
                "to continue without them",
            )
        return shard.start_offset
    first = place.next_offset
    changed = shard.changed_offset
    if changed is not None and changed < first:
        losses.add(
            f"shard {shard.name!r} was read up to offset {first}, but its node was restored from a backup since then: "
            f"from offset {changed} on it holds other records than those that were read",
            f"to read these as well, from offset {changed} on",
        )
        first = changed
    elif first > shard.next_offset:
        losses.add(
            f"shard {shard.name!r} ends at offset {shard.next_offset} but was read up to {first}: the store was set "
            "back to an earlier state",
            "to continue with what is appended from there on",
        )
        first = shard.next_offset
    if first < shard.start_offset:
        losses.add(
            f"shard {shard.name!r}: records from offset {first} up to {shard.start_offset} were trimmed before they "
            "were read",
            "to continue without them",
        )
        first = shard.start_offset
    return first


def _scan_files(
    spark: SparkSession, tree: SealedTree, ranges: Iterable[ShardRange], origin: Origin, columns: Sequence[str]
) -> DataFrame:
    return scan(spark, chosen_files(tree, ranges), topics=origin.topics, shards=origin.shards, columns=columns)


def _read_rest(spark: SparkSession, origin: Origin, ranges: Sequence[ShardRange]) -> DataFrame:
    from pyspark.sql import functions

    options = origin.options()
    names = [one.shard for one in ranges]
    if len(names) <= _MOST_NAMES:
        options["shards"] = json.dumps(names)
    if names:
        options["startingOffsets"] = json.dumps({one.shard: one.sealed_end for one in ranges})
        options["endingOffsets"] = json.dumps({one.shard: one.next_offset for one in ranges})
        # A shard may be deleted and created again under the same name before this is read: offsets do not show that.
        options["shardIds"] = json.dumps({one.shard: one.shard_id for one in ranges})
    frame = spark.read.format("journal").options(**options).load()
    if len(names) <= _MOST_NAMES:
        return frame
    # Shards without a rest, and those created since the snapshot.
    wanted = spark.createDataFrame([(name,) for name in names], "shard string")
    return frame.join(functions.broadcast(wanted), "shard", "left_semi")
