"""Queues over HTTP: the server shows what `journal queue` shows, from what brokers wrote into the store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.cli.view import QueueView
from broker_adapter.cache_queue.queue import change_queue, look
from tests.cache_queue.queues import NAME, driven, filled, told, waiting
from tests.patience import PATIENCE_S
from tests.server.serving import Served, serving


async def page(served: Served, **query: Any) -> dict[str, Any]:
    base = f"http://127.0.0.1:{served.ports['http']}/api/v1"
    async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S) as client:
        answer = await client.get("/queues", params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def view(adapter: StorageAdapter) -> QueueView:
    return QueueView(await look(adapter, NAME), time.time_ns() // 1000, None)


@pytest.mark.parametrize(
    ("state", "reason", "age_s"),
    [("ok", "", 0), ("down", "http://sink: Connection refused", 0), ("retrying", "", 0), ("ok", "", 60)],
)
async def test_a_queue_is_shown_as_its_driver_and_its_operator_see_it(
    tmp_path: Path, state: str, reason: str, age_s: int
) -> None:
    async with serving(tmp_path) as served, open_adapter(f"journal://127.0.0.1:{served.ports['tcp']}") as adapter:
        await filled(adapter, b"0", b"1", b"2")
        drain = await driven(adapter)
        await drain.set_aside([((await waiting(drain))[0], "no column")])
        await told(adapter, state, reason=reason, age_s=age_s, done_offset=1)
        seen = await view(adapter)
        (queue,) = (await page(served))["queues"]
        assert (queue["name"], queue["shard"], queue["waiting_records"]) == (NAME, names.shard_of(NAME), 2)
        assert queue["state"] == seen.activity
        assert queue["driver"] == seen.holder
        assert queue["dead_letter_records"] == seen.state.dead_letter_count == 1
        if age_s:
            assert queue["reason"].startswith("broker-1 has not reported for 6")
        else:
            assert seen.state.status is not None
            assert (queue["reason"], queue["since_us"]) == (reason, seen.state.status.since_us)
            assert (queue["in_rate"], queue["out_rate"]) == (3.0, 5.0)
        await change_queue(adapter, NAME, is_paused=True)
        (queue,) = (await page(served))["queues"]
        assert queue["state"] == (await view(adapter)).activity == "paused"


async def test_a_queue_whose_entries_cannot_be_read_is_still_listed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, open_adapter(f"journal://127.0.0.1:{served.ports['tcp']}") as adapter:
        await adapter.create_shard("$queue/a")
        await adapter.append("$queue/a", [b"0", b"1"])
        await adapter.commit_cursor("$queue/a", "drained", 1)
        await adapter.create_shard("$queue/b")
        for key in (names.definition_key("b"), names.status_key("b"), names.progress_key("b"), names.lease_key("b")):
            await adapter.put_state(key, b"\x01no MessagePack of ours")
        found = await page(served, limit=1)
        assert (found["more"], found["after"]) == (True, "$queue/a")
        assert [(each["name"], each["state"], each["waiting_records"]) for each in found["queues"]] == [
            ("a", "unknown", 1)
        ]
        found = await page(served, after="$queue/a")
        assert [(each["name"], each["state"]) for each in found["queues"]] == [("b", "unknown")]
        assert not found["more"]
