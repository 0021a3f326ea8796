"""Python values of Arrow columns. Times that Python's types do not have become text in the form of ISO 8601."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH: Final = date(1970, 1, 1)
# After so many years the calendar repeats, on the same days of the week.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def column_values(column: pa.Array) -> Sequence[object]:
    """The values of a column as `pyarrow.Array.to_pylist` returns them, but of any year.

    A timestamp may have any number of microseconds in 64 bits, which is up to the year 294247; Python's end with 9999.
    """
    try:
        values: list[object] = column.to_pylist()
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]
    return values


def iso_date(days: int) -> str:
    """A day, counted from 1970-01-01, with a sign and six digits of the year unless it has four digits."""
    cycles, day = divmod(days, _CYCLE_DAYS)
    short = _EPOCH + timedelta(day)
    year = short.year + cycles * _CYCLE_YEARS
    return f"{f'{year:04}' if 0 <= year <= 9999 else f'{year:+07}'}-{short:%m-%d}"


def iso_timestamp(count: int, unit: str, *, is_utc: bool) -> str:
    """A time, counted from 1970 in a unit of Arrow (`s`, `ms`, `us` or `ns`)."""
    digits = _DIGITS[unit]
    seconds, fraction = divmod(count, 10**digits)
    days, second = divmod(seconds, 86_400)
    time = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{iso_date(days)}T{time}{f'.{fraction:0{digits}}' if fraction else ''}{'Z' if is_utc else ''}"


def _value(scalar: pa.Scalar) -> Any:
    """The value of one scalar, which may have such times anywhere inside."""
    import pyarrow as pa

    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        match scalar:
            case pa.TimestampScalar():
                return iso_timestamp(scalar.value, scalar.type.unit, is_utc=scalar.type.tz is not None)
            case pa.Date32Scalar():
                return iso_date(scalar.value)
            case pa.MapScalar():
                return [(_value(entry["key"]), _value(entry["value"])) for entry in scalar.values]
            case pa.ListScalar():
                return [_value(each) for each in scalar.values]
            case pa.StructScalar():
                return {field.name: _value(scalar[number]) for number, field in enumerate(scalar.type)}
            case _:
                raise
