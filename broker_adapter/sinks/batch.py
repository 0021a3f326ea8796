"""What a sink gets: consecutive records of one queue, as rows of named values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import attrs

Value = None | bool | int | float | Decimal | str | bytes | Sequence["Value"] | Mapping[str, "Value"]
"""A value of a row: what JSON knows, and bytes. A number whose digits a float would change is a `Decimal`."""

Row = Mapping[str, Value]
"""A record as a bridge projects it: values by column, all rows of a bridge with the same columns in the same order."""


@attrs.frozen(slots=True)
class Batch:
    """Rows to be written together, in order.

    Offsets are those of the queue and count records, so ``[first_offset, next_offset)`` is the batch's range. Offsets
    without a row lie in it where records had expired, were dropped or were set aside.

    Attributes:
        first_offset: Where the batch before ended.
        next_offset: Offset behind the last row. A sink that keeps a position keeps this.
        offsets: Of each row; ascending.
        rows: At least one.
        size_bytes: About how large the rows are.
    """

    first_offset: int
    next_offset: int
    offsets: Sequence[int]
    rows: Sequence[Row]
    size_bytes: int
