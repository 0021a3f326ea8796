"""Encoding of a batch as the bytes of a file: Parquet with Arrow, or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker_adapter.sinks.batch import Batch, Value, column_of
from broker_adapter.sinks.column_types import ColumnType, converter, type_of
from broker_adapter.sinks.errors import BatchRefusedError
from broker_adapter.sinks.json_form import encode_rows
from journal.settings.values import ConfigurationError
from shards.extras import install_command

Encode = Callable[[Batch], bytes]
"""Encodes the whole file. It raises `BatchRefusedError` for a row with a value that cannot be written."""


def parquet_encoder(columns: Sequence[str], declared: Mapping[str, str]) -> Encode:
    """The encoder of Parquet files.

    Raises:
        ConfigurationError: A type is declared for a column that rows do not have, or Arrow is not installed.
    """
    for column in declared:
        if column not in columns:
            raise ConfigurationError(f"types.{column} is given, but the columns of rows are {', '.join(columns)}")
    try:
        import pyarrow as pa
        from pyarrow import parquet

        from broker_adapter.sinks.arrow_types import ARROW_TYPES
    except ImportError as error:
        raise ConfigurationError(f"the sink files needs pyarrow: {install_command('sinks')}") from error
    types = {column: type_of(column, declared) for column in columns}
    schema = pa.schema([pa.field(column, ARROW_TYPES[types[column]]) for column in columns])

    def encode(batch: Batch) -> bytes:
        arrays = [
            pa.array(_converted(column, types[column], column_of(batch.rows, column)), schema.field(column).type)
            for column in columns
        ]
        buffer = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_arrays(arrays, schema=schema), buffer, compression="zstd")
        return bytes(buffer.getvalue())

    return encode


def encode_lines(batch: Batch) -> bytes:
    """Encode a batch as JSON lines."""
    lines, refusals = encode_rows(batch.rows)
    if refusals:
        raise BatchRefusedError(f"row {refusals[0].index}: {refusals[0].reason}", index=refusals[0].index)
    return b"\n".join(lines) + b"\n"


def _converted(column: str, column_type: ColumnType, values: Sequence[Value]) -> list[Any]:
    convert = converter(column_type)
    converted = []
    for index, value in enumerate(values):
        try:
            converted.append(None if value is None else convert(value))
        except ValueError as error:
            raise BatchRefusedError(f"row {index}: column {column} {error}", index=index) from error
    return converted
