"""Ledger files, the outcome of a run and what is told of it."""

from __future__ import annotations

from pathlib import Path

import attrs
import msgspec
import pytest
from rich.console import Console

from demo.check import Found, check_shard
from demo.history import Figures, History
from demo.ledger import Acknowledged, Ledger, Line, Published, Received, ReceivedGap, digest_of, read_ledger
from demo.read_back import ReadBack
from demo.report import Outcome, Percentiles, document, percentiles, render, render_history, summary, verdict
from tests.demo.test_check import SHARD, file_shard, memory_shard


def history(*, found: list[Figures] | None = None) -> History:
    figures = [Figures("host/broker-a/load", "load_1min", 3, 0.5, 0.9), Figures("host/broker-b/cpu", "user", 2, 7, 8)]
    return History(
        found=figures if found is None else found,
        expected=figures,
        sealed_files=2,
        sealed_bytes=9_000,
        sealing_s=0.1,
        session_s=5.0,
        query_s=1.0,
    )


def outcome(*, holds: bool = True) -> Outcome:
    shards = [file_shard(), attrs.evolve(memory_shard(), name="host/broker-a/load")]
    if not holds:
        shards[0] = attrs.evolve(shards[0], found=[Found(0, "d0", 0), Found(1, "d1", 1)], next_offset=2)
    return Outcome(
        shards=[check_shard(each) for each in shards],
        modes={SHARD: [("memory", 0), ("file", 1_200)]},
        publishing_s=2.0,
        published_bytes=4_000_000,
        latencies={"durable": Percentiles(3, 1.0, 2.0, 3.0), "memory": Percentiles(3, 0.5, 0.6, 900.0)},
        ready_again_s=0.8,
        acknowledged_again_s=0.9,
        read_back=ReadBack(4, 1_000_000, 0.5),
        damages=[],
        history=history(),
    )


def test_a_ledger_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    lines: list[Line] = [
        Published("a", 0, digest_of(b"x"), 1),
        Acknowledged("a", 0, digest_of(b"x"), -1, 2, 1500, 99),
        Received("b", 7, digest_of(b"y"), 3),
        ReceivedGap("b", 8, 20),
    ]
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.write(lines[:2])
        ledger.write([])
        ledger.write(lines[2:])

    assert list(read_ledger(tmp_path / "ledger")) == lines


def test_the_verdict_is_that_of_every_shard() -> None:
    assert outcome().broken == []
    assert str(verdict(outcome())).startswith("HELD: all 3 records acknowledged as durable are there")
    assert "2 lost from memory" in str(verdict(outcome()))

    broken = outcome(holds=False)
    assert f"{SHARD}: 1 acknowledged as durable and missing" in broken.broken
    assert str(verdict(broken)).startswith("NOT HELD")


def test_damage_on_disk_and_an_empty_run_break_it_too() -> None:
    assert attrs.evolve(outcome(), damages=["log at byte 5: rotten"]).broken == ["offline check: log at byte 5: rotten"]
    assert "nothing was published" in attrs.evolve(outcome(), shards=[]).broken[0]


def test_what_spark_counts_otherwise_breaks_it() -> None:
    short = history(found=[Figures("host/broker-a/load", "load_1min", 2, 0.5, 0.9)])
    broken = attrs.evolve(outcome(), history=short).broken

    assert len(broken) == 2
    assert broken[0].startswith("host/broker-a/load: Spark finds 2 records")
    assert broken[1].startswith("host/broker-b/cpu: Spark finds nothing")


def test_the_table_of_the_history_marks_what_was_not_acknowledged_so() -> None:
    other = [*history().expected[:1], Figures("host/broker-b/cpu", "user", 2, 7.5, 8)]
    console = Console(width=140)
    with console.capture() as capture:
        console.print(render_history(history(found=other)))
    rows = [line.split() for line in capture.get().splitlines()]

    assert ["host/broker-a/load", "load_1min", "3", "0.50", "0.90", "yes"] in rows
    assert ["host/broker-b/cpu", "user", "2", "7.50", "8.00", "NO"] in rows


def test_the_table_and_the_summary_say_the_figures() -> None:
    console = Console(width=140)
    with console.capture() as capture:
        console.print(render(outcome()))
        console.print(render(attrs.evolve(outcome(), shards=[])))
    table = capture.get()

    assert "file 1,200" in table
    assert "0-9" in table
    assert any(line.split() == ["all", "6", "3", "3", "4", "2", "0", "0", "5+0"] for line in table.splitlines())
    assert "3 records/s, 2.00 MB/s" in summary(outcome())[0]
    assert "acknowledged after 0.90 s" in summary(outcome())[2]


def test_the_document_is_json_with_the_verdict_in_front() -> None:
    told = msgspec.json.decode(msgspec.json.encode(document(outcome(holds=False))))

    assert told["held"] is False
    assert told["broken"]
    assert told["shards"][0]["missing_durable"] == 1
    assert told["shards"][1]["gaps"] == [{"first_offset": 0, "next_offset": 10}]
    assert told["latencies"]["memory"]["p99_ms"] == 0.6


@pytest.mark.parametrize(
    ("latencies_us", "expected"),
    [
        ([], Percentiles(0, 0.0, 0.0, 0.0)),
        ([1500], Percentiles(1, 1.5, 1.5, 1.5)),
        (list(range(0, 101_000, 1000)), Percentiles(101, 50.0, 99.0, 100.0)),
    ],
)
def test_percentiles_are_values_that_were_measured(latencies_us: list[int], expected: Percentiles) -> None:
    assert percentiles(reversed(latencies_us)) == expected
