"""``python -m benchmarks.scale``: measure how cost grows in each dimension, print the laws, and draw the curves."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.load import Timing
from benchmarks.machine import EXPECTED_ERRORS, machine
from benchmarks.runs import UnavailableError, format_figure
from benchmarks.scale import curves, growth, plots
from benchmarks.scale.curves import FIGURES, Curve, format_size
from benchmarks.scale.dimensions import DIMENSIONS
from benchmarks.scale.growth import Bounds, Form
from benchmarks.stage import Stage

FULL: Final = Form(Timing(warm_up_s=0.3, measured_s=1.5), runs=3, warm_up_bytes=1 << 30, appends=100_000, reads=300)
QUICK: Final = Form(Timing(warm_up_s=0.3, measured_s=0.9), runs=1, warm_up_bytes=4 << 20, appends=5000, reads=100)
MINUTES: Final = 20.0
TABLE_WIDTH: Final = 165


def main(argv: Sequence[str] | None = None) -> int:
    """Run. Returns 0 unless a measurement failed: a size without room or time for it is left out, and named."""
    arguments = _parser().parse_args(argv)
    errors = Console(stderr=True)
    known = {dimension.key: dimension for dimension in DIMENSIONS}
    wanted = arguments.dimensions.split(",") if arguments.dimensions else list(known)
    unknown = [key for key in wanted if key not in known]
    if unknown or arguments.minutes <= 0 or arguments.most < 1:
        problem = (
            f"no dimension {unknown[0]!r}; there are {', '.join(known)}" if unknown else "--minutes and --most: above 0"
        )
        errors.print(problem, markup=False)
        return 2
    # On SIGTERM it still stops the servers it started and removes their data.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    gc.collect()
    gc.freeze()
    data = Path(arguments.data)
    data.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + arguments.minutes * 60
    found: list[Curve] = []
    for place, key in enumerate(wanted):
        # What a dimension does not use of its part is there for the others.
        now_s = time.monotonic()
        deadline_s = now_s + max(0.0, end_s - now_s) / (len(wanted) - place)
        noun = known[key].noun

        def progress(size: float, noun: str = noun) -> None:
            errors.print(f"{format_size(size)} {noun}", markup=False)

        with Stage(Path(tempfile.mkdtemp(prefix="scale-", dir=data))) as stage:
            # A curve must not wait for data that the one before left to be written.
            os.sync()
            curve = growth.measure(
                known[key],
                stage,
                QUICK if arguments.quick else FULL,
                Bounds(arguments.most, time.monotonic, deadline_s),
                progress=progress,
                expected_errors=EXPECTED_ERRORS,
            )
        found.append(curve)
        _show(curve)
    if arguments.json:
        document = curves.document(found, machine(data))
        Path(arguments.json).write_text(json.dumps(document, indent=2) + "\n")
    if arguments.plots:
        _draw(found, Path(arguments.plots), errors)
    return 1 if any(curve.has_failed for curve in found) else 0


def _show(curve: Curve) -> None:
    """Print the points and the laws of a curve, and what was left out."""
    console = Console()
    console = Console(width=max(console.width if console.is_terminal else 0, TABLE_WIDTH))
    table = Table(title=curve.title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column(curve.noun, justify="right")
    for figure in FIGURES.values():
        table.add_column(f"{figure.title} [{figure.unit}]".replace("[", r"\["), justify="right")
    for point in curve.points:
        table.add_row(format_size(point.size), *(format_figure(point.figures[key]) for key in FIGURES))
    console.print(table)
    for key, words in curve.words().items():
        console.print(f"{FIGURES[key].title}: {words}", markup=False)
    for size, reason in curve.left_out:
        console.print(f"left out: {format_size(size)} {curve.noun}: {reason}", markup=False, soft_wrap=True)


def _draw(found: Sequence[Curve], directory: Path, errors: Console) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        for curve in found:
            if curve.points:
                plots.draw(curve, directory / f"scale-{curve.key}.svg")
    except UnavailableError as error:
        errors.print(f"no plots: {error}", markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Measure how cost grows.")
    names = ",".join(dimension.key for dimension in DIMENSIONS)
    parser.add_argument("--dimensions", metavar="NAMES", default="", help=f"only these, with commas between ({names})")
    parser.add_argument("--most", metavar="N", type=float, default=math.inf, help="largest size of each dimension")
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=float,
        default=MINUTES,
        help=f"time for all of them ({MINUTES:g}); the smallest size is always measured",
    )
    parser.add_argument("--quick", action="store_true", help="one short run for each figure, and no warm-up")
    parser.add_argument("--json", metavar="FILE", help="also write points and laws there")
    parser.add_argument("--plots", metavar="DIR", help="also draw the curves there, as scale-NAME.svg")
    parser.add_argument(
        "--data", metavar="DIR", default=".bench", help="where to put data; a real disk (default .bench)"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
