"""The load on cache queues: a queue that holds less than it should, or rows that are not counted, would look fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load import LoadError
from benchmarks.queues import bridging, draining, putting
from benchmarks.queues.destinations import DESTINATIONS
from benchmarks.queues.rows import CHUNK_RECORDS, SINKS, VALUE_BYTES
from benchmarks.queues.web_service import WebService
from broker_adapter import PendingAppend, StorageAdapter, open_adapter
from broker_adapter.cache_queue import QueueWriter, ensure_queue, look
from broker_adapter.mqtt.config import load_broker_config
from shards.errors import OverloadedError
from shards.format.record import Record


class FullNowAndThen(QueueWriter):
    """A writer whose client has no room at every third call."""

    calls = 0

    def put_nowait(self, records: list[Record]) -> PendingAppend | None:  # type: ignore[override]
        self.calls += 1
        if self.calls % 3 == 0:
            raise OverloadedError("too much is under way")
        return super().put_nowait(records)


@pytest.mark.parametrize("number", [0, 7, 99_999, 100_000])
def test_payloads_have_one_size(number: int) -> None:
    assert len(putting.payload(number)) == VALUE_BYTES


async def test_a_queue_is_filled_to_the_last_record_also_when_the_client_is_full() -> None:
    count = 30 * CHUNK_RECORDS
    adapter: StorageAdapter
    async with open_adapter("memory:") as adapter:
        writer = FullNowAndThen(adapter, "bench", putting.SETTINGS, writer="bench")
        await ensure_queue(adapter, "bench", putting.SETTINGS)
        assert await putting.put(adapter, writer, lambda put_in, _acknowledged: put_in < count) == count
        assert writer.calls > 30
        assert (await look(adapter, "bench")).depth.record_count == count


@pytest.mark.parametrize("kind", SINKS)
def test_a_bridge_has_the_usual_settings(kind: str, tmp_path: Path) -> None:
    assert kind in DESTINATIONS
    sinks = {
        "http": {"url": "http://127.0.0.1:1/rows"},
        "postgresql": {"url": "postgresql://postgres@127.0.0.1:1/postgres", "table": "rows"},
        "mqtt": {"address": "127.0.0.1:1"},
        "redis": {"url": "redis://127.0.0.1:1/0", "stream": "rows"},
        "files": {"directory": str(tmp_path)},
    }
    path = tmp_path / "broker.toml"
    path.write_text(draining.bridge_config(("127.0.0.1", 1), "bench", putting.TOPIC, {"type": kind, **sinks[kind]}))
    [bridge] = load_broker_config(path).bridge
    assert bridge.queue == putting.SETTINGS


@pytest.mark.parametrize(
    ("offsets", "in_order"),
    [([0, 1, 2, 0, 1], True), ([0, 1, 1], False), ([0, 2], False), ([1], False)],
)
def test_the_web_service_sees_rows_that_come_twice_or_not(offsets: list[int], in_order: bool) -> None:
    service = WebService()
    for offset in offsets:
        service.take([{"offset": offset}])
    assert service.state == {"rows": len(offsets), "in_order": in_order}


def test_messages_that_are_no_whole_chunks_are_refused(tmp_path: Path) -> None:
    """The last ones would never be published, and be waited for."""
    with pytest.raises(LoadError, match=r"20,010 messages cannot be split into chunks of 250 over 10 connections"):
        bridging.bridged_rate({}, 20_010, tmp_path)
