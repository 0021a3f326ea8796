"""`--from` names a place: earliest, latest, an offset, a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line.boundary import UsageError
from journal.cli.shown_records import parse_start
from shards.position import Start

NOW_US = 1_800_000_000_000_000
NOON_US = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 1_000_000
EAST = timezone(timedelta(hours=3))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Start.earliest()),
        ("latest", Start.latest()),
        ("0", Start.offset(0)),
        ("42", Start.offset(42)),
        ("20260131", Start.offset(20_260_131)),
        ("2026-01-31T12:00:00Z", Start.time(NOON_US)),
        ("2026-01-31T15:00:00+03:00", Start.time(NOON_US)),
        ("2026-01-31T15:00:00", Start.time(NOON_US)),
        ("2026-01-31 15:00", Start.time(NOON_US)),
        ("2026-01-31T12:00:00.000001Z", Start.time(NOON_US + 1)),
        ("2026-01-31", Start.time(NOON_US - 15 * 3_600_000_000)),
        ("1960-01-01", Start.time(0)),
        ("-15m", Start.time(NOW_US - 900_000_000)),
        ("-1d12h", Start.time(NOW_US - 36 * 3_600_000_000)),
        ("-0s", Start.time(NOW_US)),
        ("-9999w", Start.time(0)),
    ],
)
def test_each_form_names_its_place(text: str, expected: Start) -> None:
    assert parse_start(text, now_us=NOW_US, local_zone=EAST) == expected


@pytest.mark.parametrize("text", ["", "newest", "-", "-15", "-1.5h", "+15m", "12:00", "2026-13-01", "1e3", "٣", "-5"])
def test_anything_else_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="15m"):
        parse_start(text, now_us=NOW_US)


def test_a_negative_offset_is_told_from_a_duration_without_a_unit() -> None:
    with pytest.raises(UsageError, match=r"--from -1: offsets begin at 0, and a duration .* such as -1m .*`latest`"):
        parse_start("-1", now_us=NOW_US)


def test_a_time_without_a_zone_is_local_time() -> None:
    expected = datetime(2026, 7, 1, 8).astimezone().timestamp()
    assert parse_start("2026-07-01T08:00", now_us=NOW_US) == Start.time(int(expected * 1_000_000))


@given(st.datetimes(min_value=datetime(1970, 1, 2), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis wants it naive
def test_every_time_survives_the_way_to_text_and_back(moment: datetime) -> None:
    start = parse_start(moment.isoformat(), now_us=NOW_US)
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=start.value) == moment
