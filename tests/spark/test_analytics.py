"""The programs of docs/analytics.md, word for word, on a day of readings: each plots the same points.

With `PICTURES` in the environment the picture of the page is made there (`make screenshots`).
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from shards.format.record import Record
from spark_export.cli.main import run
from tests.documents.pages import REPOSITORY, blocks_of
from tests.spark.sealed_trees import SealedTree

PROGRAMS: Final = [
    block.text for block in blocks_of(REPOSITORY / "docs" / "analytics.md") if block.language == "python"
]
MIDNIGHT_US: Final = 1_772_323_200_000_000
"""2026-03-01T00:00:00Z"""
MINUTE_US: Final = 60_000_000
EVERY_MINUTES: Final = 10

SIGNS: Final = {"duckdb": 'journal.sql("""', "polars": "import polars", "pyspark": "from pyspark"}
"""Something that only one of the programs has."""

Curves = dict[str, list[float]]


def temperature(line: int, minute: int) -> float:
    return round(20 + 2 * line + 3 * math.sin((minute - 480) / 1440 * 2 * math.pi) + (minute * line % 7) / 10, 2)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of a day, three lines, with a payload that is no JSON in each."""
    place = tmp_path_factory.mktemp("analytics")
    tree = SealedTree(place)
    for line in (1, 2, 3):
        readings = [
            Record(b'{"temperature": %.2f}' % temperature(line, minute), timestamp_us=MIDNIGHT_US + minute * MINUTE_US)
            for minute in range(0, 1440, EVERY_MINUTES)
        ]
        damaged = Record(b"{", timestamp_us=MIDNIGHT_US)
        tree.convert(f"plant/line{line}/temperature", [*readings, damaged])
        tree.convert(f"plant/line{line}/state", [Record(b'"on"', timestamp_us=MIDNIGHT_US)])
    return place


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which a program works, on a clean canvas without a screen."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.figsize": (7, 3.2),
            "savefig.dpi": 110,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "date.converter": "concise",
        }
    )
    plt.close("all")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plt.close("all")


def curves() -> Curves:
    """What is on the canvas."""
    import matplotlib.pyplot as plt

    return {
        str(line.get_label()): [round(float(value), 6) for value in line.get_ydata()]  # type: ignore[union-attr]
        for line in plt.gca().get_lines()
    }


EXPECTED: Final[Curves] = {
    f"line{line}": [
        round(sum(temperature(line, minute) for minute in range(start, start + 30, EVERY_MINUTES)) / 3, 6)
        for start in range(0, 1440, 30)
    ]
    for line in (1, 2, 3)
}


def program(library: str, directory: Path) -> str:
    [text] = [text for text in PROGRAMS if SIGNS[library] in text]
    return text.replace("/var/lib/journal", str(directory))


@pytest.mark.parametrize("library", ["duckdb", "polars", pytest.param("pyspark", marks=pytest.mark.slow("runs Spark"))])
def test_a_program_draws_the_means_of_each_line(
    library: str, directory: Path, drawn: Path, request: pytest.FixtureRequest
) -> None:
    if library == "pyspark":
        request.getfixturevalue("spark")
    exec(compile(program(library, directory), "docs/analytics.md", "exec"), {})
    found = curves()
    assert set(found) == set(EXPECTED)
    for line, values in EXPECTED.items():
        assert found[line] == pytest.approx(values, abs=1e-5)
    picture = drawn / "temperature.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    if library == "duckdb" and (place := os.environ.get("PICTURES")):
        shutil.copyfile(picture, REPOSITORY / place / "analytics.png")


def test_the_picture_of_the_page_is_there() -> None:
    assert (REPOSITORY / "docs" / "images" / "analytics.png").read_bytes().startswith(b"\x89PNG")


def test_about_ten_lines_are_enough() -> None:
    assert len(PROGRAMS) == 3
    for text in PROGRAMS:
        assert len([line for line in text.splitlines() if line.strip()]) <= 15


def test_the_command_gives_the_same_means(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    query = (
        "select topic[1] as line, round(avg(value:temperature::double), 4) as mean from records "
        "where topic like 'plant/%/temperature' group by 1 order by 1"
    )
    assert run(["sql", str(directory), query, "--engine", "duckdb", "--csv"]) == 0
    lines = capfd.readouterr().out.splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == ["line1", "line2", "line3"]
    for line in lines:
        name, mean = line.split(",")
        assert float(mean) == pytest.approx(sum(EXPECTED[name]) / len(EXPECTED[name]), abs=1e-3)


@pytest.fixture(autouse=True)
def _same_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs leave no view behind in the session of the tests."""
    yield
    if "spark" in request.fixturenames and (session := SparkSession.getActiveSession()) is not None:
        session.catalog.dropTempView("records")
