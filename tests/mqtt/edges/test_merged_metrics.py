"""The metrics of several processes as those of one broker."""

from __future__ import annotations

from broker_adapter.mqtt.telemetry.merged_metrics import MergedMetrics, decode_families, encode_families, joined
from journal.telemetry.exposition import Family, counter, counters, gauge, gauges, histogram
from journal.telemetry.histogram import Histogram


def samples(families: list[Family], name: str) -> dict[tuple[str, ...], float]:
    (family,) = [family for family in families if family.name == name]
    return {(suffix, *values) if suffix else values: value for suffix, values, value in family.samples}


def times(*values: float) -> Histogram:
    found = Histogram((0.1, 1.0))
    for value in values:
        found.observe(value)
    return found


def test_families_come_back_as_they_were_sent() -> None:
    families = [
        counters("a_total", "What a is.", ("x",), {("1",): 2}),
        gauge("b", "What b is.", 0.5),
        histogram("c_seconds", "What c is.", times(0.05)),
    ]
    assert decode_families(encode_families(families)) == families


def test_counters_and_histograms_are_summed() -> None:
    merged = MergedMetrics()
    one = [
        counters("a_total", "", ("x",), {("1",): 2, ("2",): 3}),
        histogram("c_seconds", "", times(0.05, 5)),
    ]
    other = [counters("a_total", "", ("x",), {("1",): 10}), histogram("c_seconds", "", times(0.5))]
    families = merged.families({1: one, 2: other})
    assert samples(families, "a_total") == {("1",): 12, ("2",): 3}
    assert samples(families, "c_seconds") == {
        ("_bucket", "0.1"): 1,
        ("_bucket", "1"): 2,
        ("_bucket", "+Inf"): 3,
        ("_sum",): 5.55,
        ("_count",): 3,
    }


def test_gauges_are_summed_where_the_sum_is_that_of_the_broker_and_labelled_elsewhere() -> None:
    one = [gauge("journal_broker_sessions", "", 2), gauges("journal_broker_x", "", ("y",), {("z",): 1})]
    other = [gauge("journal_broker_sessions", "", 3), gauges("journal_broker_x", "", ("y",), {("z",): 5})]
    families = MergedMetrics().families({1: one, 2: other})
    assert samples(families, "journal_broker_sessions") == {(): 5}
    assert samples(families, "journal_broker_x") == {("z", "1"): 1, ("z", "2"): 5}
    assert [family.labels for family in families] == [(), ("y", "process")]


def test_what_the_system_says_of_a_process_is_never_summed() -> None:
    families = MergedMetrics().families({1: [counter("process_cpu_seconds_total", "", 7)]})
    assert samples(families, "process_cpu_seconds_total") == {("1",): 7}


def test_counters_never_fall_when_a_process_ends_or_does_not_answer() -> None:
    """A sum that falls is a restart for Prometheus, which then counts everything once more."""
    merged = MergedMetrics()
    one, other = [counter("a_total", "", 5)], [counter("a_total", "", 7), gauge("journal_broker_sessions", "", 1)]
    merged.note(1, one)
    merged.note(2, other)
    assert samples(merged.families({1: one, 2: other}), "a_total") == {(): 12}
    silent = merged.families({1: one})
    assert samples(silent, "a_total") == {(): 12}
    assert [family.name for family in silent] == ["a_total"]
    merged.note_ended(2)
    assert samples(merged.families({1: one}), "a_total") == {(): 12}
    assert samples(merged.families({}), "a_total") == {(): 12}
    merged.note(2, [counter("a_total", "", 1)])
    assert samples(merged.families({1: one}), "a_total") == {(): 13}
    merged.note_ended(2)
    merged.note_ended(1)
    assert samples(merged.families({}), "a_total") == {(): 13}


def test_families_of_one_name_are_joined() -> None:
    families = joined([gauges("a", "", ("x",), {("1",): 1}), gauge("b", "", 2), gauges("a", "", ("x",), {("2",): 3})])
    assert [(family.name, len(family.samples)) for family in families] == [("a", 2), ("b", 1)]
