"""`python -m benchmarks.compare` measures two states in turns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shards import compiled

ROOT = Path(__file__).resolve().parents[2]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.compare", *arguments, "--data", str(directory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow("runs the benchmark twice")
def test_a_revision_is_measured_in_turns_with_this_state(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run(tmp_path, "HEAD", "--rows", "one.encoded", "--pairs", "1", "--json", str(result))
    assert done.returncode == 0, done.stderr
    (row,) = [row for row in json.loads(result.read_text())["rows"] if row["key"] == "one.encoded"]
    assert row["pairs"] == 1
    assert row["verdict"] == "too few pairs"
    assert row["before"] > 0
    assert "one.encoded" in done.stdout
    assert "left out" not in done.stderr or compiled.append_loop_type is None
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_an_unknown_revision_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "no-such-revision")
    assert (done.returncode, done.stderr) == (2, "git knows no revision 'no-such-revision' here\n")
