"""What the ledgers promise of the sealed segments, topic by topic."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from demo.history import Figures, expected_figures
from demo.ledger import Acknowledged, Ledger, Published

CPU = "host/broker-a/cpu"


def ledger_of(path: Path, numbers: list[float | None], *, levels: list[int]) -> Path:
    with Ledger(path) as ledger:
        for sequence, (number, level) in enumerate(zip(numbers, levels, strict=True)):
            ledger.write([Published(CPU, sequence, f"d{sequence}", 10, number)])
            if level:
                ledger.write([Acknowledged(CPU, sequence, f"d{sequence}", sequence, level, 5, 5)])
    return path


def test_only_what_was_acknowledged_as_durable_counts(tmp_path: Path) -> None:
    path = ledger_of(tmp_path / "ledger", [1.0, 2.0, 3.0, 4.0], levels=[2, 1, 0, 2])

    assert expected_figures([path]) == [Figures(CPU, "user", 2, 2.5, pytest.approx(3.85))]


def test_a_record_without_a_number_counts_but_has_no_share_in_the_mean(tmp_path: Path) -> None:
    path = ledger_of(tmp_path / "ledger", [None, 8.0, None], levels=[2, 2, 2])
    other = ledger_of(tmp_path / "other", [None], levels=[2])

    assert expected_figures([path]) == [Figures(CPU, "user", 3, 8.0, 8.0)]
    assert expected_figures([other]) == [Figures(CPU, "user", 1, None, None)]


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
