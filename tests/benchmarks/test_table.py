"""What people and scripts are shown of a benchmark."""

from __future__ import annotations

import io
import json

from rich.console import Console

from benchmarks import table
from benchmarks.runs import Goal, Row, Samples, evaluate

LINES = evaluate(
    [
        Row("peer.x", "the peer", "records/s", "no fsync"),
        Row("ours.x", "ours", "records/s", "fsync", peer="peer.x", goal=Goal(2.0, of="peer.x")),
        Row("peer.y", "another peer", "records/s"),
    ],
    {
        "peer.x": Samples([100.0, 200.0, 300.0]),
        "ours.x": Samples([300.0, 600.0, 900.0]),
        "peer.y": Samples([], "not installed"),
    },
)


def test_the_table_shows_figures_ratios_goals_and_what_is_missing() -> None:
    console = Console(width=150, file=io.StringIO())
    console.print(table.render(LINES, title="title", caption="caption"))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    [ours] = [text_line for text_line in text.splitlines() if "ours.x" in text_line]
    for word in ("fsync", "600", "300-900", "records/s", "3.00", ">= 2 x peer.x", "yes"):
        assert word in ours
    assert "not installed" in text


def test_reasons_are_listed_once_with_their_rows() -> None:
    assert table.problems(LINES) == ["peer.y: not installed"]


def test_the_document_is_json_with_one_object_a_row() -> None:
    document = json.loads(json.dumps(table.document(LINES, machine={"cores": 2}, form="quick")))
    assert document["form"] == "quick"
    assert document["machine"] == {"cores": 2}
    peer, ours, missing = document["rows"]
    assert ours == {
        "key": "ours.x",
        "title": "ours",
        "promise": "fsync",
        "unit": "records/s",
        "median": 600.0,
        "min": 300.0,
        "max": 900.0,
        "runs": 3,
        "peer": "peer.x",
        "peer_ratio": 3.0,
        "limit": None,
        "limit_ratio": None,
        "goals": [{"bound": 2.0, "of": "peer.x", "at_most": False}],
        "reached": True,
        "problem": None,
    }
    assert peer["goals"] == []
    assert missing["median"] is None
    assert missing["problem"] == "not installed"
