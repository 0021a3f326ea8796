"""The rows of the adapters in this process: a measurement that nothing runs would break unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import in_process
from benchmarks.in_process import STORES
from benchmarks.load import LoadError, Timing
from benchmarks.runs import Measurement
from benchmarks.stage import Stage

LENGTHS_S = (0.05, 0.5, 5.0)
"""A slow disk answers nothing in the first: then the next one is tried."""
READ_BYTES = 1 << 20


def test_every_row_is_measured_for_every_store(tmp_path: Path) -> None:
    measured = [key for one in in_process.measurements(Stage(tmp_path)) for key in one.keys]
    assert measured == [row.key for row in in_process.rows()]
    kinds = ["one", "singles", "batches", "read", "subscribe", "open"]
    assert measured == [f"{store}.{kind}" for store in STORES for kind in kinds]


def figures_of(measurement: Measurement) -> Mapping[str, float]:
    for length_s in LENGTHS_S:
        try:
            return measurement.run(Timing(warm_up_s=0.0, measured_s=length_s))
        except LoadError:
            if length_s == LENGTHS_S[-1]:
                raise
    raise AssertionError


@pytest.mark.parametrize("store", STORES)
def test_every_measurement_gives_a_figure(store: str, tmp_path: Path) -> None:
    with Stage(tmp_path / "stage", keep=True) as stage:
        for measurement in in_process.measurements(stage, read_bytes=READ_BYTES):
            [key] = measurement.keys
            if key.startswith(store):
                figure = figures_of(measurement)[key]
                # A slow disk may acknowledge none of many appends within such a short run.
                assert figure > 0 or (figure == 0 and key in ("embedded.singles", "embedded.batches"))
        assert (tmp_path / "stage" / "embedded").exists() is (store == "embedded")
