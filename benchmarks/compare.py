"""``python -m benchmarks.compare REVISION``: is this state of the program faster than another one, and by how much?

Both states run in turns, on the same Python and the same libraries, so slow changes of the machine affect both. The
figure is the median of the ratios of neighbouring runs, with the interval in which it surely is.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.paired import CONFIDENCE, MARGIN, Comparison, compare, pairs_of
from benchmarks.runs import format_figure

ROOT = Path(__file__).resolve().parents[1]
PAIRS = 10
ROWS = "batches.*,singles.*,one.*"


class CompareError(Exception):
    """A comparison is not possible; the message tells why."""


@attrs.frozen(slots=True)
class State:
    """A state of the program that is measured.

    Attributes:
        name: For messages.
        directory: Where its files are.
    """

    name: str
    directory: Path

    def run(self, rows: str, data: Path, *, full: bool) -> tuple[dict[str, float], dict[str, str]]:
        """One run of the benchmark: the figures of its rows, and their units."""
        with tempfile.TemporaryDirectory() as scratch:
            result = Path(scratch) / "result.json"
            command = [sys.executable, "-m", "benchmarks", "--runs", "1", "--rows", rows, "--data", str(data)]
            command += ["--json", str(result), *([] if full else ["--quick"])]
            environment = {**os.environ, "PYTHONPATH": str(self.directory)}
            done = subprocess.run(
                command, cwd=self.directory, env=environment, capture_output=True, text=True, check=False
            )
            if not result.exists():
                raise CompareError(f"the benchmark of {self.name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
            found = json.loads(result.read_text())["rows"]
        measured = [row for row in found if row["median"] is not None]
        return {row["key"]: row["median"] for row in measured}, {row["key"]: row["unit"] for row in measured}


def unpack(revision: str, directory: Path) -> State:
    """Put the files of a revision into a directory.

    Raises:
        CompareError: There is no such revision.
    """
    named = ["git", "-C", str(ROOT), "rev-parse", "--short", "--verify", "--quiet", f"{revision}^{{commit}}"]
    if shutil.which("git") is None:
        raise CompareError("git is not installed, which has the other state of the program")
    found = subprocess.run(named, capture_output=True, text=True, check=False)
    if found.returncode:
        raise CompareError(f"git knows no revision {revision!r} here")
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", revision], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(directory, filter="data")
        else:  # Python before 3.11.4; the archive is git's own
            files.extractall(directory)
    if (directory / "hatch_build.py").exists():
        # Its compiled loops, which are not among the files; where they cannot be built, both states have none.
        subprocess.run([sys.executable, "hatch_build.py"], cwd=directory, check=True)
    return State(found.stdout.strip(), directory)


def measure(other: State, this: State, rows: str, pairs: int, data: Path, *, full: bool) -> list[Comparison]:
    """Run both in turns; which is first changes from pair to pair.

    Raises:
        CompareError: A run failed, or they have no row in common.
    """
    figures: dict[str, list[tuple[float, float]]] = {}
    units: dict[str, str] = {}
    progress = Console(stderr=True)
    for number in range(pairs):
        states = (other, this) if number % 2 == 0 else (this, other)
        runs: dict[str, dict[str, float]] = {}
        for state in states:
            progress.print(f"pair {number + 1} of {pairs}: {state.name}", markup=False)
            runs[state.name], units_of_run = state.run(rows, data, full=full)
            units |= units_of_run
        for key, pair in pairs_of(runs[other.name], runs[this.name]).items():
            figures.setdefault(key, []).append(pair)
    if not figures:
        raise CompareError(f"no row that matches {rows!r} was measured in both states")
    return [compare(key, units[key], found) for key, found in figures.items()]


def shown(found: Sequence[Comparison], other: State) -> Table:
    """The table."""
    table = Table(title=f"This state against {other.name}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("row", no_wrap=True)
    for name in ("pairs", other.name, "this state", "unit", "ratio", f"{CONFIDENCE:.0%} surely in", "all in"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in found:
        surely = "" if each.low is None or each.high is None else f"{each.low:.2f}-{each.high:.2f}"
        table.add_row(
            each.key,
            str(each.pairs),
            format_figure(each.before),
            format_figure(each.now),
            each.unit,
            f"{each.ratio:.3f}",
            surely,
            f"{each.lowest:.2f}-{each.highest:.2f}",
            each.verdict,
        )
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Compare. Returns 1 if a row is surely worse, 2 if it could not compare."""
    arguments = _parser().parse_args(argv)
    if arguments.pairs < 1:
        Console(stderr=True).print("--pairs must be 1 or more")
        return 2
    data = Path(arguments.data).resolve()
    data.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="compare-", dir=data) as directory:
            other = unpack(arguments.revision, Path(directory))
            this = State("this state", ROOT)
            found = measure(other, this, arguments.rows, arguments.pairs, data, full=arguments.full)
    except CompareError as error:
        Console(stderr=True).print(str(error), markup=False)
        return 2
    console = Console()
    console = Console(width=max(console.width if console.is_terminal else 0, 150))
    console.print(shown(found, other))
    console.print(f"same: surely within {MARGIN:.0%}. A machine that does other work needs more pairs.", markup=False)
    if arguments.json:
        rows = [{**attrs.asdict(each), "verdict": each.verdict} for each in found]
        Path(arguments.json).write_text(json.dumps({"other": other.name, "rows": rows}, indent=2) + "\n")
    return 1 if any(each.verdict == "worse" for each in found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description="Measure this state of the program against another one."
    )
    parser.add_argument("revision", metavar="REVISION", help="a commit, or what names one (main, HEAD~3)")
    parser.add_argument("--rows", metavar="PATTERN", default=ROWS, help=f"rows, as in python -m benchmarks ({ROWS})")
    parser.add_argument("--pairs", metavar="N", type=int, default=PAIRS, help=f"pairs of runs (default {PAIRS})")
    parser.add_argument("--full", action="store_true", help="runs of the full form, longer and with more data")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument(
        "--data", metavar="DIR", default=".bench", help="where to put data; a real disk (default .bench)"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
