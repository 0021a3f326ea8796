"""The unit that a sink writes: consecutive records of one queue, as rows of named values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import overload

import attrs

Value = None | bool | int | float | Decimal | str | bytes | Sequence["Value"] | Mapping[str, "Value"]
"""A value of a row: a JSON value, or bytes. A number whose digits a float would change is a `Decimal`."""

Row = Mapping[str, Value]
"""A record after projection: values by column. All rows of a bridge have the same columns in the same order."""


@attrs.frozen(slots=True, repr=False)
class Rows(Sequence[Row]):
    """Rows that are kept as columns, as most sinks write them; a row is made when it is asked for.

    Attributes:
        names: Names of the columns; at least one.
        columns: The values of each column, as many in each.
    """

    names: Sequence[str]
    columns: Sequence[Sequence[Value]]

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Row]:
        names = self.names
        return (dict(zip(names, values, strict=True)) for values in zip(*self.columns, strict=True))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: int | slice) -> Row | Rows:
        found = [column[index] for column in self.columns]
        return Rows(self.names, found) if isinstance(index, slice) else dict(zip(self.names, found, strict=True))  # type: ignore[arg-type]


def column_of(rows: Sequence[Row], name: str) -> Sequence[Value]:
    """The values of a column, in the order of the rows."""
    return rows.columns[rows.names.index(name)] if isinstance(rows, Rows) else [row[name] for row in rows]


@attrs.frozen(slots=True)
class Batch:
    """Rows to be written together, in order.

    Offsets are those of records in the queue; ``[first_offset, next_offset)`` is the batch's range. Offsets in it
    without a row are those of records that had expired, were dropped or were set aside.

    Attributes:
        first_offset: End of the batch before.
        next_offset: Offset after the last row. A sink that keeps a position stores this.
        offsets: Offset of each row; ascending.
        rows: At least one.
        size_bytes: Approximate size of the rows.
    """

    first_offset: int
    next_offset: int
    offsets: Sequence[int]
    rows: Sequence[Row]
    size_bytes: int
