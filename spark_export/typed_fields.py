"""The fields of typed rows: columns with sources and types, as a bridge to files writes them. Neither Arrow nor Spark.

The rows are made by the projection of bridges, so a field is the same in a bridge, an export and a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker_adapter.bridge.projection import Projection
from broker_adapter.sinks.column_types import ColumnType, converter, type_of
from shards.format.record import StoredRecord
from spark_export.errors import OptionError


def check_fields(fields: Mapping[str, str], types: Mapping[str, str], own_columns: Sequence[str]) -> None:
    """Check fields and their types.

    Args:
        fields: Source by column.
        types: Types of some of the columns.
        own_columns: Columns that the rows have anyway.

    Raises:
        OptionError: One of them is not valid; the message begins with ``fields`` or ``types``.
    """
    try:
        Projection(fields)
    except ValueError as error:
        raise OptionError(f"fields {error}") from error
    # Names of columns in databases and in Spark are the same in both cases.
    taken = {column.lower() for column in own_columns}
    if found := next((column for column in fields if column.lower() in taken), None):
        raise OptionError(
            f"fields has a column {found!r}, but typed rows have a column of that name anyway: {', '.join(own_columns)}"
        )
    for column, kind in types.items():
        if column not in fields:
            raise OptionError(f"types has {column!r}, which is no column of fields: {', '.join(fields) or 'none'}")
        if kind not in list(ColumnType):
            raise OptionError(f"types has {column!r} as {kind!r}, it must be one of {', '.join(ColumnType)}")


def types_of(fields: Mapping[str, str], types: Mapping[str, str]) -> dict[str, ColumnType]:
    """The type of each column; columns without a declared one have the type of bridges."""
    return {column: type_of(column, types) for column in fields}


class TypedFields:
    """Makes the typed values of a record.

    Args:
        fields: Source by column; checked with `check_fields`.
        kinds: Type by column.
    """

    def __init__(self, fields: Mapping[str, str], kinds: Mapping[str, ColumnType]) -> None:
        self._projection = Projection(fields)
        self._converters: tuple[tuple[str, Callable[[Any], Any]], ...] = tuple(
            (column, converter(kind)) for column, kind in kinds.items()
        )

    def convert(self, record: StoredRecord) -> tuple[list[Any], str]:
        """The values of a record, in the order of the columns, and the first problem; empty if there is none.

        A value that the payload lacks, or that does not fit the type of its column, is None.
        """
        row, problem = self._projection.row_with_problem(record)
        made: list[Any] = []
        for column, convert in self._converters:
            value = row[column]
            if value is not None:
                try:
                    value = convert(value)
                except ValueError as error:
                    value, problem = None, problem or f"column {column} {error}"
            made.append(value)
        return made, problem
