"""Conditions on rows that a query pushes down: which values they exclude in advance, and which rows satisfy them.

A condition is about the columns offset, timestamp, append_time, topic and shard as the data source shows them; times
are microseconds since the epoch. Spark's filters are translated into conditions here as well. Nothing is read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

Value = int | str
Operator = Literal["=", "<", "<=", ">", ">=", "in"]

NUMBERS: Final = ("offset",)
TIMES: Final = ("timestamp", "append_time")
TEXTS: Final = ("topic", "shard")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOLDS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda found, values: found in values,
}
# Whether any value from `low` to `high` may satisfy the condition.
_MAY_HOLD: Final[dict[str, Callable[[Any, Any, Any], bool]]] = {
    "=": lambda low, high, value: low <= value <= high,
    "<": lambda low, _, value: low < value,
    "<=": lambda low, _, value: low <= value,
    ">": lambda _, high, value: high > value,
    ">=": lambda _, high, value: high >= value,
    "in": lambda low, high, values: any(low <= value <= high for value in values),
}
_MASKS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "in": pc.is_in,
}
# The names of Spark's filter classes.
_OPERATORS: Final[dict[str, Operator]] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
}


@attrs.frozen(slots=True)
class Condition:
    """One comparison of a column with a value, or with several (``in``)."""

    column: str
    operator: Operator
    value: Value | tuple[Value, ...]

    def holds(self, found: Value) -> bool:
        """Whether a value of the column satisfies it."""
        return _HOLDS[self.operator](found, self.value)

    def may_hold(self, low: Value, high: Value) -> bool:
        """Whether a value from ``low`` to ``high`` may satisfy it."""
        return _MAY_HOLD[self.operator](low, high, self.value)

    def mask(self, values: pa.Array) -> pa.Array:
        """Which of the column's values satisfy it; times have the type in `shards.parquet.schema`."""
        found = values.cast(pa.int64()) if self.column in TIMES else values
        many = isinstance(self.value, tuple)
        compared = pa.array(self.value, found.type) if many else pa.scalar(self.value, found.type)
        return _MASKS[self.operator](found, compared)


def may_hold(conditions: Iterable[Condition], column: str, low: Value, high: Value) -> bool:
    """Whether a row whose ``column`` is between ``low`` and ``high`` may satisfy all conditions."""
    return all(one.may_hold(low, high) for one in conditions if one.column == column)


def from_filters(filters: Iterable[Filter]) -> tuple[list[Condition], list[Filter]]:
    """Translate Spark's filters.

    Returns:
        Conditions, and the filters that cannot be translated: Spark has to apply these.
    """
    conditions: list[Condition] = []
    others: list[Filter] = []
    for one in filters:
        condition = _translate(one)
        if condition is not None:
            conditions.append(condition)
        elif not _always_holds(one):
            others.append(one)
    return conditions, others


def _translate(found: Filter) -> Condition | None:
    sign = _OPERATORS.get(type(found).__name__)
    attribute: Sequence[str] = getattr(found, "attribute", ())
    if sign is None or len(attribute) != 1:
        return None
    column = attribute[0]
    value = getattr(found, "value", None)
    if sign == "in":
        values = tuple(_value(column, one) for one in value or ())
        known = tuple(one for one in values if one is not None)
        return Condition(column, "in", known) if known and len(known) == len(values) else None
    converted = _value(column, value)
    return None if converted is None else Condition(column, sign, converted)


def _value(column: str, value: object) -> Value | None:
    """The value in the form of the column; None if the column cannot be compared with it."""
    if column in NUMBERS and isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    if column in TIMES and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    if column in TEXTS and isinstance(value, str):
        return value
    return None


def _always_holds(found: Filter) -> bool:
    """Whether a filter always holds: no column is ever null."""
    attribute: Sequence[str] = getattr(found, "attribute", ())
    return type(found).__name__ == "IsNotNull" and len(attribute) == 1
