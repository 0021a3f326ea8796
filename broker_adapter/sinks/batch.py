"""The unit that a sink writes: consecutive records of one queue, as rows of named values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import attrs

Value = None | bool | int | float | Decimal | str | bytes | Sequence["Value"] | Mapping[str, "Value"]
"""A value of a row: a JSON value, or bytes. A number whose digits a float would change is a `Decimal`."""

Row = Mapping[str, Value]
"""A record after projection: values by column. All rows of a bridge have the same columns in the same order."""


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
