"""The outcome of a run and the report about it."""

from __future__ import annotations

import attrs
import msgspec
import pytest
from rich.console import Console

from demo.evidence.check import check_topic
from demo.results.figures import Percentiles, percentiles
from demo.results.history import Figures, History
from demo.results.outcome import Outcome
from demo.results.report import document, render, render_history, summary, verdict
from tests.demo.test_check import TOPIC, evidence, found, memory


def history(*, found_figures: list[Figures] | None = None) -> History:
    figures = [Figures("host/sensor-a/load", "load_1min", 3, 0.5, 0.9), Figures("host/sensor-b/cpu", "user", 2, 7, 8)]
    return History(
        found=figures if found_figures is None else found_figures,
        expected=figures,
        sealed_files=2,
        sealed_bytes=9_000,
        conversion_s=0.1,
        session_s=5.0,
        query_s=1.0,
    )


def outcome(*, holds: bool = True) -> Outcome:
    topics = [evidence(), attrs.evolve(memory(), name="host/sensor-a/network")]
    if not holds:
        topics[0] = attrs.evolve(topics[0], found=found(0, 1))
    return Outcome(
        topics=[check_topic(each) for each in topics],
        modes={TOPIC: [("memory", 0), ("file", 1_200)]},
        publishing_s=2.0,
        published_bytes=4_000_000,
        acknowledging={"QoS 1": Percentiles(3, 1.0, 2.0, 3.0), "QoS 2": Percentiles(3, 0.5, 0.6, 900.0)},
        delivering=Percentiles(3, 2.0, 5.0, 800.0),
        broker_again_s=1.2,
        server_again_s=0.9,
        away_s=9.0,
        catching_up=(1234, 0.5),
        replayed=(4321, 0.25),
        outage=(6.5, 1234, 0.75),
        read_back=(4, 1_000_000, 0.5),
        damages=[],
        history=history(),
    )


def shown(*things: object, width: int = 200) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        for thing in things:
            console.print(thing)
    return console.export_text()


@pytest.mark.parametrize(
    ("latencies_us", "expected"),
    [
        ([], Percentiles(0, 0.0, 0.0, 0.0)),
        ([5_000], Percentiles(1, 5.0, 5.0, 5.0)),
        (list(range(1_000, 102_000, 1_000)), Percentiles(101, 51.0, 100.0, 101.0)),
    ],
)
def test_percentiles_are_by_the_nearest_rank(latencies_us: list[int], expected: Percentiles) -> None:
    assert percentiles(reversed(latencies_us)) == expected


def test_the_table_has_a_row_for_each_topic_and_a_column_for_each_subscriber() -> None:
    text = shown(render(outcome()))

    for word in (TOPIC, "host/sensor-a/network", "watcher", "group", "replay", "file 1,200", "doubled"):
        assert word in text
    assert "NO" not in text


def test_what_is_broken_is_seen_in_table_and_verdict() -> None:
    broken = outcome(holds=False)

    assert broken.broken == [f"{TOPIC}: 1 acknowledged and not in the store", f"{TOPIC}: 1 received twice by replay"]
    assert "NOT HELD: 2 broken promises" in verdict(broken).plain
    assert document(broken)["held"] is False


def test_the_summary_has_the_figures() -> None:
    text = "\n".join(summary(outcome()))

    for figure in (
        "6 messages",
        "1.0 ms (p50)",
        "longest 900 ms",
        "1.20 s",
        "1,234 messages",
        "4,321 messages",
        "9 kB",
    ):
        assert figure in text
    assert "HELD: all 6 acknowledged messages" in verdict(outcome()).plain
    assert "2 that were in memory" in verdict(outcome()).plain


def test_sparks_table_marks_what_disagrees() -> None:
    other = history(found_figures=[Figures("host/sensor-a/load", "load_1min", 4, 0.5, 0.9)])

    assert "NO" in shown(render_history(other))
    assert "NO" not in shown(render_history(history()))
    assert len(other.broken) == 2


def test_the_document_is_json() -> None:
    told = msgspec.json.decode(msgspec.json.encode(document(outcome())))

    assert told["held"] is True
    assert told["modes"] == {TOPIC: [["memory", 0], ["file", 1200]]}
    assert told["topics"][0]["seen"]["watcher"]["received"] == 3


def test_a_machine_without_telemetry_holds_nothing() -> None:
    assert attrs.evolve(outcome(), topics=[]).broken == [
        "nothing was published: there is no telemetry to read on this machine"
    ]
