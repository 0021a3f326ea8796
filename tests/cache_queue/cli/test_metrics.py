"""`journal queue metrics`: the metrics of cache queues for Prometheus."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.stored import WriterCounts
from broker_adapter.state_forms import encode
from tests.cache_queue.cli.conftest import Store
from tests.cache_queue.queues import NAME, driven, filled, report, waiting
from tests.patience import PATIENCE_S

PYPROJECT = Path(__file__).parents[3]


def values(page: str) -> dict[tuple[str, ...], float]:
    """Values by metric and labels but the queue's name."""
    return {
        (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "queue")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def some_left(adapter: StorageAdapter) -> None:
    """Five records of which two were confirmed by a driver that is gone; one writer met a full queue."""
    await filled(adapter, b"1", b"2", b"3", b"4", b"5")
    drain = await driven(adapter)
    assert len(await waiting(drain)) == 5
    await drain.confirm(2, type(drain.counts)(confirmed=2), 2)
    await report(adapter, drain)
    await adapter.put_state(names.writer_key(NAME, "one"), encode(WriterCounts(7, 1)))


def test_the_page_shows_depth_age_and_outcomes_of_records(store: Store) -> None:
    store.do(some_left)
    found = values(store.queue("metrics").out)
    assert found[("journal_queue_depth_records",)] == 3
    assert found[("journal_queue_depth_bytes",)] > 0
    assert found[("journal_queue_oldest_age_seconds",)] >= 0
    assert found[("journal_queue_records_in_total",)] == 5
    assert found[("journal_queue_records_out_total", "confirmed")] == 2
    assert found[("journal_queue_refused_records_total", "rejected")] == 7
    assert found[("journal_queue_refused_records_total", "dropped_newest")] == 1
    states = {name: value for name, value in found.items() if name[0] == "journal_queue_state"}
    assert [name[1] for name, value in states.items() if value] == ["not driven"]
    assert found[("journal_queue_driven",)] == 0


def test_a_store_without_queues_has_a_page_without_values(store: Store) -> None:
    assert values(store.queue("metrics").out) == {}


@pytest.mark.slow("starts the program several times")
def test_the_page_can_be_scraped_until_the_program_is_stopped(store: Store) -> None:
    store.do(some_left)
    command = (
        "from broker_adapter.cache_queue.cli.metrics import metrics_command as run; import sys;"
        "run(listen='127.0.0.1:0', server=sys.argv[1])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", command, store.url], stdout=subprocess.PIPE, text=True, cwd=PYPROJECT, env=os.environ
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("ready metrics=").strip()
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as reply:
                assert values(reply.read().decode())[("journal_queue_depth_records",)] == 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_a_wrong_address_is_refused(store: Store) -> None:
    assert "is not an address" in store.queue("metrics", "--listen", "nowhere", status=2).err
