"""What clients of a journal know: which records are acknowledged and not trimmed, and what a query is to find of them.

Plain dictionaries and comparisons, nothing of the code under test. Tables that Spark or the data source made become the
same rows here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from shards.format.record import Record
from shards.model import Mode
from shards.topics.topic_filters import matches
from spark_export.sealed_scan import COLUMNS

Row = tuple[Any, ...]
"""What Spark shows of a record, in the order of `COLUMNS`; times in microseconds since the epoch."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = ("timestamp", "append_time")
_HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda found, values: found in values,
}


@attrs.frozen
class Kept:
    """An acknowledged record."""

    record: Record
    append_time_us: int
    in_memory: bool


@attrs.define
class ShardModel:
    """One shard; one that is deleted and made again has another id.

    Attributes:
        start: First offset that was not trimmed.
        end: Offset after the last one.
        ever_in_memory: It may lose offsets with the node: those that were reserved, and perhaps used.
        kept: Acknowledged records by offset, those below the start too.
    """

    shard_id: int
    mode: Mode = Mode.FILE
    start: int = 0
    end: int = 0
    ever_in_memory: bool = False
    kept: dict[int, Kept] = attrs.Factory(dict)

    def copy(self) -> ShardModel:
        return attrs.evolve(self, kept=dict(self.kept))


@attrs.frozen
class Comparison:
    """One comparison of a column with a value; with several if the operator is ``in``."""

    column: str
    sign: str
    value: Any

    def holds(self, row: dict[str, Any]) -> bool:
        return bool(_HOLDS[self.sign](row[self.column], self.value))

    def in_spark(self) -> Column:
        column = sql.col(self.column)
        if self.sign == "in":
            return column.isin([self._literal(one) for one in self.value])
        found: Column = _HOLDS["=" if self.sign == "=" else self.sign](column, sql.lit(self._literal(self.value)))
        return found

    def _literal(self, value: Any) -> Any:
        return _EPOCH + timedelta(microseconds=value) if self.column in _TIMES else value


@attrs.frozen
class Question:
    """What a query asks for: records whose topic matches a filter, and that fulfil all comparisons."""

    topics: tuple[str, ...] = ("#",)
    comparisons: tuple[Comparison, ...] = ()

    def holds(self, row: Row) -> bool:
        named = dict(zip(COLUMNS, row, strict=True))
        return any(matches(wanted, named["topic"]) for wanted in self.topics) and all(
            one.holds(named) for one in self.comparisons
        )

    def put_to(self, frame: DataFrame) -> DataFrame:
        """The comparisons as conditions of Spark's; the topics are an option of the frame."""
        for one in self.comparisons:
            frame = frame.where(one.in_spark())
        return frame


EVERYTHING = Question()


def kept_rows(shards: dict[str, ShardModel], question: Question = EVERYTHING) -> list[Row]:
    """What a query has to find in these shards, in the order of `found_rows`."""
    rows = [
        _row(name, offset, kept)
        for name, shard in shards.items()
        if not name.startswith("$")
        for offset, kept in shard.kept.items()
        if offset >= shard.start
    ]
    return sorted(row for row in rows if question.holds(row))


def _row(shard: str, offset: int, kept: Kept) -> Row:
    record = kept.record
    return (
        record.topic or shard,
        shard,
        offset,
        record.timestamp_us,
        kept.append_time_us,
        record.key,
        record.value,
        record.headers,
        record.tags,
    )


def found_rows(table: pa.Table) -> list[Row]:
    """The rows of a table with all columns, sorted."""
    columns = []
    for name in COLUMNS:
        column = table.column(name)
        assert not column.null_count, f"{name} has nulls"
        columns.append(column.cast(pa.int64()).to_pylist() if name in _TIMES else map(_plain, column.to_pylist()))
    return sorted(zip(*columns, strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple((one["key"], one["value"]) if isinstance(one, dict) else one for one in value)
    return value


def require_same(found: Iterable[Row], expected: Iterable[Row], what: str) -> None:
    """Fail with the rows that are too many or too few."""
    found, expected = list(found), list(expected)
    if found == expected:
        return
    missing = [row for row in expected if row not in found]
    foreign = [row for row in found if row not in expected]
    twice = [row for row in found if found.count(row) > 1]
    raise AssertionError(f"{what}: missing {missing}, not expected {foreign}, more than once {twice}")
