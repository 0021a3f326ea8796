"""A plot for each curve, as SVG: its figures over the size, with the law of each as a dashed line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.runs import UnavailableError
from benchmarks.scale.curves import FIGURES, Curve, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES: Final = (12.0, 6.0)
ROWS: Final = 2
COLUMNS: Final = 3
_STEPS: Final = 60


def draw(curve: Curve, path: Path) -> None:
    """Write the plot of a curve that has points.

    Raises:
        UnavailableError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise UnavailableError(f"needs matplotlib, which `make setup` installs: {error}") from error
    # The same curve gives the same bytes, and text stays text.
    with mpl.rc_context({"svg.hashsalt": curve.key, "svg.fonttype": "none", "font.size": 9}):
        canvas = Canvas(figsize=SIZE_INCHES, layout="constrained")
        canvas.suptitle(f"How cost grows with {curve.noun}")
        words = curve.words()
        places = [place for row in canvas.subplots(ROWS, COLUMNS) for place in row]
        for place, key in zip(places, FIGURES, strict=False):
            _draw_figure(place, curve, key)
            place.set_title(words[key], fontsize=8)
        for place in places[len(FIGURES) :]:
            place.remove()
        canvas.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _draw_figure(axes: Axes, curve: Curve, key: str) -> None:
    figure, law = FIGURES[key], curve.laws()[key]
    sizes = [point.size for point in curve.points]
    first, last = sizes[0], sizes[-1]
    between = [first * (last / first) ** (step / _STEPS) for step in range(_STEPS + 1)]
    costs = [(size, law.at(size)) for size in between]
    axes.plot(*zip(*[(size, figure.cost(cost)) for size, cost in costs if cost > 0], strict=True), "--", color="0.6")
    axes.plot(sizes, [point.figures[key] for point in curve.points], "o-", color="#1f77b4")
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda size, _place: format_size(size))
    axes.set_xlabel(curve.noun)
    axes.set_ylabel(f"{figure.title} [{figure.unit}]")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, color="0.9")
