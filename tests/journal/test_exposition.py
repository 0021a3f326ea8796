"""The text of metrics is what the library of Prometheus reads, and what it would have written itself."""

from __future__ import annotations

import math
import os
import time

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from broker_adapter.mqtt.telemetry.metrics import process_figures
from journal.telemetry.exposition import counters, gauge, gauges, histogram, page_of
from journal.telemetry.histogram import Histogram

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
NUMBERS = st.floats() | st.integers(-(2**60), 2**60)


@given(TEXTS, st.dictionaries(st.tuples(TEXTS, TEXTS), NUMBERS))
def test_any_text_and_any_number_is_read_back(what: str, values: dict[tuple[str, ...], float]) -> None:
    page = page_of([gauges("a_gauge", what, ("one", "other"), values), gauge("after", "", 1)]).decode()
    first, after = text_string_to_metric_families(page)
    assert (first.name, first.type) == ("a_gauge", "gauge")
    assert [sample.value for sample in after.samples] == [1]
    found = {(sample.labels["one"], sample.labels["other"]): sample.value for sample in first.samples}
    assert found.keys() == values.keys()
    for labels, value in values.items():
        assert float(found[labels]) == float(value) or (math.isnan(value) and math.isnan(found[labels]))


def test_a_histogram_is_cumulated_and_ends_in_infinity() -> None:
    values = Histogram((0.5, 1.0, 2.5))
    for value in (0.1, 0.5, 0.7, 2.0, 9.0):
        values.observe(value)
    assert page_of([histogram("x_seconds", "How long.", values)]).decode() == (
        "# HELP x_seconds How long.\n"
        "# TYPE x_seconds histogram\n"
        'x_seconds_bucket{le="0.5"} 2\n'
        'x_seconds_bucket{le="1"} 3\n'
        'x_seconds_bucket{le="2.5"} 4\n'
        'x_seconds_bucket{le="+Inf"} 5\n'
        "x_seconds_sum 12.3\n"
        "x_seconds_count 5\n"
    )


def test_counters_end_in_total_for_those_who_ask() -> None:
    (family,) = text_string_to_metric_families(page_of([counters("x_total", "", ("a",), {("1",): 2})]).decode())
    assert (family.name, family.type, family.samples[0].name) == ("x", "counter", "x_total")


def test_figures_of_the_process_are_those_of_the_system() -> None:
    def figures() -> dict[str, float]:
        return {family.name: family.samples[0][2] for family in process_figures()}

    before = figures()
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
    try:
        after = figures()
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert after["process_open_fds"] == before["process_open_fds"] + 10
    assert after["process_open_fds"] < after["process_max_fds"]
    assert 1 << 20 < after["process_resident_memory_bytes"] < after["process_virtual_memory_bytes"]
    assert after["process_cpu_seconds_total"] >= before["process_cpu_seconds_total"] > 0
    # It tells a start from the ordinary course of time: alerts count how often it changes.
    assert after["process_start_time_seconds"] == before["process_start_time_seconds"]
    assert 0 < time.time() - after["process_start_time_seconds"] < 86_400
