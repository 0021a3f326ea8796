"""What is shown of curves: a document for scripts, and plots that are the same for the same points."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.scale import __main__ as program
from benchmarks.scale import curves, plots
from benchmarks.scale.curves import FIGURES, Curve, Point
from benchmarks.scale.dimensions import DIMENSIONS

GROWN = Curve(
    "shards",
    "shards",
    "Appends",
    tuple(
        Point(
            size,
            {
                "rate": 1e6 / (2 + size / 1000),
                "processor_us": 3.0,
                "p99_us": 500.0,
                "memory_mb": 80 + size * 0.002,
                "start_s": 1.0,
            },
        )
        for size in (1, 10, 100, 1000, 10_000, 100_000)
    ),
    ((1_000_000, "takes about 300 s, and 10 s are left"),),
)
DOCS = Path(__file__).parents[3] / "docs"
IMAGES = DOCS / "images"
PAGE = (DOCS / "benchmarks.md").read_text()
KINDS = ("constant:", "logarithmic:", "linear:")


def texts_of(picture: Path) -> list[str]:
    """All texts of a picture in SVG."""
    elements = ET.fromstring(picture.read_text()).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()) for element in elements]


def test_a_rate_has_the_law_of_the_time_for_one() -> None:
    words = GROWN.words()
    assert words["rate"] == "linear: 2.00 us + 1.00 us for each 1,000 shards"
    assert words["memory_mb"] == "linear: 80.0 MB + 2.00 MB for each 1,000 shards"
    assert words["start_s"] == "constant: 1.00 s"


def test_the_document_is_json_with_points_laws_and_what_is_left_out() -> None:
    document = json.loads(json.dumps(curves.document([GROWN], {"cores": 2})))
    [curve] = document["curves"]
    assert document["machine"] == {"cores": 2}
    assert curve["points"][0] == {"size": 1, **GROWN.points[0].figures}
    assert curve["laws"]["memory_mb"]["kind"] == "linear"
    assert curve["laws"]["memory_mb"]["words"] == GROWN.words()["memory_mb"]
    assert curve["left_out"] == [{"size": 1_000_000, "reason": "takes about 300 s, and 10 s are left"}]


def test_a_curve_without_points_has_no_laws() -> None:
    nothing = Curve("shards", "shards", "Appends", (), ((1, "failed: LoadError: refused"),), has_failed=True)
    assert nothing.words() == {}
    assert curves.document([nothing], {})["curves"][0]["points"] == []


@pytest.mark.slow("imports the library that draws")
def test_a_plot_is_svg_with_the_laws_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        plots.draw(GROWN, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    texts = texts_of(tmp_path / "one.svg")
    assert set(GROWN.words().values()) <= set(texts)
    assert "How cost grows with shards" in texts


@pytest.mark.parametrize("arguments", [["--dimensions", "shards,sheep"], ["--minutes", "0"], ["--most", "0.5"]])
def test_what_cannot_be_measured_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(arguments) == 2
    assert capsys.readouterr().err


def test_sizes_rise_and_names_are_used_once() -> None:
    assert len({dimension.key for dimension in DIMENSIONS}) == len(DIMENSIONS)
    for dimension in DIMENSIONS:
        assert list(dimension.sizes) == sorted(set(dimension.sizes))


@pytest.mark.parametrize("key", [dimension.key for dimension in DIMENSIONS])
def test_the_page_has_the_plot_of_each_dimension_and_says_its_laws(key: str) -> None:
    assert f"(images/scale-{key}.svg)" in PAGE
    laws = [text for text in texts_of(IMAGES / f"scale-{key}.svg") if text.startswith(KINDS)]
    assert len(laws) == len(FIGURES)
    for law in laws:
        assert f" {law} |" in PAGE
