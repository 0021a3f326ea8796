"""Durations and sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line.boundary import UsageError
from command_line.quantities import (
    format_duration,
    parse_duration_s,
    parse_duration_us,
    parse_size_bytes,
)
from shards.quantities import counted, format_size, plural


@pytest.mark.parametrize(
    ("text", "expected_us"),
    [("1us", 1), ("5ms", 5_000), ("0s", 0), ("90s", 90_000_000), ("1h30m", 5_400_000_000), ("2w", 1_209_600_000_000)],
)
def test_durations(text: str, expected_us: int) -> None:
    assert parse_duration_us(text) == expected_us


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5y", "5s!", "s5s", "1.5h"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration_us(text)


def test_a_duration_in_seconds_is_whole() -> None:
    assert parse_duration_s("1000ms") == 1
    with pytest.raises(UsageError, match="whole number of seconds"):
        parse_duration_s("1500ms")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("4096", 4096), ("1k", 1024), ("64MiB", 64 << 20), ("10GB", 10**10), ("2 TiB", 2 << 40), ("7B", 7)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5GiB", "1 MB B", "1XiB", "0x10"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 << 10, "10.0 KiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (100 << 20, "100 MiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_sizes_are_shown_with_three_digits(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.integers(min_value=0, max_value=10**10))
def test_a_formatted_duration_parses_back(duration_s: int) -> None:
    assert parse_duration_s(format_duration(duration_s)) == duration_s


@given(st.integers(min_value=0, max_value=1 << 60))
def test_a_formatted_size_is_within_one_percent(size_bytes: int) -> None:
    number, unit = format_size(size_bytes).split()
    factor = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
    assert float(number) * factor == pytest.approx(size_bytes, rel=0.01)


def test_a_count_has_the_noun_that_goes_with_it() -> None:
    assert [counted(count, "record") for count in (0, 1, 2, 2000)] == [
        "0 records",
        "1 record",
        "2 records",
        "2,000 records",
    ]
    assert [plural(count, "batch", "batches") for count in (0, 1, 2)] == ["batches", "batch", "batches"]
