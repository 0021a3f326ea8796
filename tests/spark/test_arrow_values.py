"""Values of results that Python's types do not have: times of any year, also inside of other values."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from spark_export.cli.arrow_values import column_values

LAST = (1 << 63) - 1
TIME = pa.timestamp("us", tz="UTC")
LAST_TEXT = "+294247-01-10T04:00:54.775807Z"


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        (LAST, LAST_TEXT),
        (253_402_300_800_000_000, "+010000-01-01T00:00:00Z"),
        (253_402_300_799_999_999, datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-62_135_596_800_000_000, datetime(1, 1, 1, tzinfo=UTC)),
        (-62_135_596_800_000_001, "0000-12-31T23:59:59.999999Z"),
        (-62_167_219_200_000_001, "-000001-12-31T23:59:59.999999Z"),
        (-LAST - 1, "-290308-12-21T19:59:05.224192Z"),
    ],
)
def test_a_time_of_any_year(microseconds: int, expected: object) -> None:
    assert column_values(pa.array([microseconds, None], TIME)) == [expected, None]
    without_zone = expected.removesuffix("Z") if isinstance(expected, str) else expected.replace(tzinfo=None)
    assert column_values(pa.array([microseconds], pa.timestamp("us"))) == [without_zone]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("s", "+292277026596-12-04T15:30:07Z"),
        ("ms", "+292278994-08-17T07:12:55.807Z"),
        ("ns", "2262-04-11T23:47:16.854775807Z"),
    ],
)
def test_a_time_in_other_units(unit: str, expected: str) -> None:
    assert column_values(pa.array([LAST], pa.timestamp(unit, tz="UTC"))) == [expected]


def test_a_date_of_any_year() -> None:
    days = pa.array([(1 << 31) - 1, 2_932_897, 2_932_896, -719_529, -(1 << 31)], pa.int32()).cast(pa.date32())
    assert column_values(days) == [
        "+5881580-07-11",
        "+010000-01-01",
        date(9999, 12, 31),
        "-000001-12-31",
        "-5877641-06-23",
    ]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.list_(TIME), [LAST, None], [LAST_TEXT, None]),
        (pa.struct([("a", TIME), ("b", pa.list_(TIME))]), {"a": LAST, "b": [LAST]}, {"a": LAST_TEXT, "b": [LAST_TEXT]}),
        (pa.map_(pa.string(), TIME), [("k", LAST)], [("k", LAST_TEXT)]),
    ],
    ids=["list", "struct", "map"],
)
def test_times_inside_of_other_values(kind: pa.DataType, value: object, expected: object) -> None:
    assert column_values(pa.array([value, None], kind)) == [expected, None]
