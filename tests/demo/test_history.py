"""What the store promises of the sealed segments, topic by topic."""

from __future__ import annotations

import math

import pytest

from demo.evidence.read_back import lies_in_file
from demo.results.history import Figures, History, expected_figures

CPU = "host/sensor-a/cpu"


def test_the_figures_are_those_of_the_records_in_files() -> None:
    expected = expected_figures({CPU: [1.0, 4.0], "host/sensor-b/load": []})

    assert expected == [Figures(CPU, "user", 2, 2.5, pytest.approx(3.85))]


def test_a_record_without_a_number_counts_but_has_no_share_in_the_mean() -> None:
    assert expected_figures({CPU: [None, 8.0, None]}) == [Figures(CPU, "user", 3, 8.0, 8.0)]
    assert expected_figures({CPU: [None]}) == [Figures(CPU, "user", 1, None, None)]


@pytest.mark.parametrize(
    ("other", "agrees"),
    [
        (Figures(CPU, "user", 2, 2.5 + 1e-12, 4.0), True),
        (Figures(CPU, "user", 2, 2.6, 4.0), False),
        (Figures(CPU, "user", 3, 2.5, 4.0), False),
        (Figures(CPU, "user", 2, None, 4.0), False),
        (Figures(CPU, "user", 2, 2.5, math.nextafter(4.0, 5.0)), True),
    ],
)
def test_figures_agree_but_for_the_last_digits_of_a_sum(other: Figures, *, agrees: bool) -> None:
    assert Figures(CPU, "user", 2, 2.5, 4.0).agrees_with(other) is agrees


def test_a_topic_that_one_side_lacks_is_reported() -> None:
    one, two = Figures(CPU, "user", 2, 2.5, 4.0), Figures("host/sensor-a/disk", "busy_ms", 1, 1.0, 1.0)
    history = History(
        found=[one], expected=[two], sealed_files=1, sealed_bytes=1, conversion_s=0.1, session_s=1.0, query_s=1.0
    )

    assert [line.partition(":")[0] for line in history.broken] == [CPU, "host/sensor-a/disk"]


@pytest.mark.parametrize(("offset", "is_in_file"), [(0, False), (9, False), (10, True), (29, True), (30, False)])
def test_a_record_was_written_in_the_mode_of_its_offset(offset: int, *, is_in_file: bool) -> None:
    assert lies_in_file(offset, [("memory", 0), ("file", 10), ("memory", 30)]) is is_in_file
    assert lies_in_file(offset, []) is False
