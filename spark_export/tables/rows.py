"""From records to the rows of a table: the record's place, the typed fields, and what was wrong with the payload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from shards.format.record import StoredRecord
from spark_export.tables.declaration import TableDeclaration
from spark_export.tables.schema import arrow_schema
from spark_export.typed_fields import TypedFields

_WITHOUT_HEADERS: Final = re.compile(r"(\$|=|topic\b|offset\b|timestamp\b|time\b|payload\b|text\b|json\b|key\b)")


def record_columns(declaration: TableDeclaration) -> list[str]:
    """The columns of records that a table needs."""
    needed = ["topic", "shard", "offset", "timestamp", "append_time", "key", "value"]
    if not all(_WITHOUT_HEADERS.match(source) for source in declaration.fields.values()):
        # Headers take longer than all other columns together.
        needed.append("headers")
    return needed


class TableRows:
    """Makes the rows of a table.

    Args:
        declaration: The table.
        shard_ids: The id of each shard, by its name.
    """

    def __init__(self, declaration: TableDeclaration, shard_ids: Mapping[str, int]) -> None:
        self._typed = TypedFields(declaration.fields, declaration.kinds)
        self._schema = arrow_schema(declaration)
        self._columns = tuple(declaration.fields)
        self._shard_ids = shard_ids

    def convert(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """The rows of records, and how many of them have a problem.

        Args:
            records: With the columns of `record_columns`.
        """
        convert = self._typed.convert
        made: list[list[Any]] = []
        problems: list[str | None] = []
        payloads: list[bytes | None] = []
        for record in _records(records):
            values, problem = convert(record)
            made.append(values)
            problems.append(problem or None)
            payloads.append(record.value if problem else None)
        names = records.column("shard").dictionary_encode()
        ids = pa.array([self._shard_ids[name] for name in names.dictionary.to_pylist()], pa.int64())
        columns: dict[str, Any] = {
            **{name: records.column(name) for name in ("topic", "shard", "offset", "append_time")},
            "shard_id": ids.take(names.indices),
            **dict(zip(self._columns, zip(*made, strict=True), strict=True)),
            "problem": problems,
            "bad_payload": payloads,
        }
        arrays = [_array(columns[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), sum(each is not None for each in problems)


def _array(values: Any, kind: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values if values.type.equals(kind) else values.cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def _records(records: pa.RecordBatch) -> Any:
    """The records of a batch, one after the other."""
    times = [records.column(name).cast(pa.int64()).to_pylist() for name in ("append_time", "timestamp")]
    values, keys, topics = (records.column(name).to_pylist() for name in ("value", "key", "topic"))
    if "headers" in records.schema.names:
        lists = records.column("headers").to_pylist()
        headers = [tuple((each["key"], each["value"]) for each in found) for found in lists]
    else:
        headers = [()] * records.num_rows
    offsets = records.column("offset").to_pylist()
    for row, offset in enumerate(offsets):
        yield StoredRecord(offset, 0, times[0][row], values[row], keys[row], topics[row], times[1][row], headers[row])
