"""The rows that compare both forms of the loop over appends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmark
from benchmarks import append_loop
from benchmarks.load import Timing
from benchmarks.machine import build_of_python
from shards import compiled


def test_both_forms_get_the_same_chunks() -> None:
    for measurement in append_loop.measurements():
        figures = measurement.run(Timing(warm_up_s=0.0, measured_s=0.1))
        assert all(figure > 0 for figure in figures.values())
        assert set(figures) == (set(measurement.keys) if compiled.append_loop_type else {measurement.keys[0]})


def test_the_output_says_which_python_and_which_form_it_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program of its own may do these; the process of the tests must not be changed.
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr(benchmark, "QUICK", Timing(warm_up_s=0.0, measured_s=0.05))
    result = tmp_path / "result.json"
    arguments = ["--quick", "--runs", "1", "--rows", "appender.*.one", "--data", str(tmp_path / "data")]
    assert benchmark.main([*arguments, "--json", str(result)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    machine = json.loads(result.read_text())["machine"]
    assert machine["hot loops"] == compiled.DESCRIPTION
    assert f"hot loops {compiled.DESCRIPTION}" in shown
    assert "configured with" in machine["python"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'--enable-optimizations' '--with-lto'", "configured with PGO and LTO"),
        ("'--with-lto=thin'", "configured with LTO"),
        ("'--enable-shared'", "configured without PGO and LTO"),
        (None, "configured without PGO and LTO"),
    ],
)
def test_how_this_python_was_built(arguments: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: arguments)
    assert build_of_python() == said
