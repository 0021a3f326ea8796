"""`python -m benchmarks.scale` with real servers, in its short form and at small sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale.curves import FIGURES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow("starts servers and a broker several times, and loads them")
def test_two_dimensions_give_figures_laws_and_plots(tmp_path: Path) -> None:
    result, drawn, data = tmp_path / "result.json", tmp_path / "plots", tmp_path / "data"
    command = [sys.executable, "-m", "benchmarks.scale", "--quick", "--most", "10", "--dimensions", "batch,sessions"]
    command += ["--json", str(result), "--plots", str(drawn), "--data", str(data)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())["curves"]
    assert [curve["key"] for curve in found] == ["batch", "sessions"]
    for curve in found:
        assert [point["size"] for point in curve["points"]] == [1, 10]
        for point in curve["points"]:
            assert all(point[key] > 0 for key in FIGURES)
        assert set(curve["laws"]) == set(FIGURES)
        assert curve["left_out"][0]["reason"] == "larger than 10"
        assert (drawn / f"scale-{curve['key']}.svg").exists()
    assert "10 records" in done.stderr
    assert "10 sessions" in done.stderr
    assert "memory: constant" in done.stdout
    assert list(data.iterdir()) == []
