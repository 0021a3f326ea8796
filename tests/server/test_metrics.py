"""The metrics page: its content, that it stays small in any case, and that Prometheus takes it as it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import trio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from journal.engine import Engine
from journal.protocol import Op, encode, frames, messages
from journal.server.inventory import NAMED_GROUPS, NAMED_QUEUES, OTHERS, Pace, SegmentState
from shards.format.batch import encode_values
from shards.model import ShardConfig
from shards.segments.shard import Shard
from tests.patience import PATIENCE_S
from tests.server.serving import FILE, MEMORY, RawClient, Served, serving


async def page(served: Served) -> str:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as browser:
        reply = await browser.get(f"http://127.0.0.1:{served.ports['http']}/metrics")
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        return reply.text


async def families(served: Served) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(await page(served))}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """The value of one series; its family may be of any kind."""
    (sample,) = (
        sample
        for family in found.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    )
    return sample.value


async def counted(served: Served) -> None:
    """Count now: the pauses of the background are for nodes that have something to do."""
    served.server.inventory.latest = await served.server.inventory.count(Pace(1))


async def filled(engine: Engine, name: str, records: int, config: ShardConfig = FILE) -> Shard:
    await engine.create_shard(name, config, exist_ok=True)
    shard = engine.parts.table.by_name(name)
    for number in range(records):
        await engine.append(shard, encode_values([b"%d" % number], timestamp_us=engine.now_us()))
    return shard


async def test_latency_and_size_are_counted_once_a_commit_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a", FILE)
        before = await families(served)
        for _ in range(3):
            await client.append_values(handle, b"x" * 100, b"y" * 100)
        found = await families(served)
        groups = value(found, "journal_commit_groups_total") - value(before, "journal_commit_groups_total")
        assert groups == 3
        for name in ("acknowledgement_seconds", "fsync_seconds", "commit_group_bytes", "commit_group_appends"):
            count = f"journal_{name}_count"
            assert value(found, count) - value(before, count) == groups
            assert value(found, f"journal_{name}_bucket", le="+Inf") == value(found, count)
        appends = "journal_commit_group_appends_sum"
        assert value(found, appends) - value(before, appends) == 3
        size = value(found, "journal_commit_group_bytes_sum") - value(before, "journal_commit_group_bytes_sum")
        assert size > 3 * 200
        # A client waits for the sync, and a little longer.
        assert 0 < value(found, "journal_fsync_seconds_sum") < value(found, "journal_acknowledgement_seconds_sum")
        assert value(found, "journal_acknowledgement_seconds_sum") < 5


async def test_a_batch_in_memory_mode_waits_for_no_disk_and_is_not_in_the_latencies(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a", MEMORY)
        await client.append_values(handle, b"x")
        before = await families(served)
        await client.append_values(handle, b"x")
        found = await families(served)
        assert value(found, "journal_appends_total") == value(before, "journal_appends_total") + 1
        count = "journal_acknowledgement_seconds_count"
        assert value(found, count) == value(before, count)


async def test_bytes_that_go_out_are_counted_by_their_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        async with served.client() as client:
            handle = await client.open("a", FILE)
            await client.append_values(handle, b"x" * 500)
            await client.read_values(handle)
            await client.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, shard="a", start="earliest"))
            await client.push()
            found = await families(served)
            assert value(found, "journal_fetched_bytes_total") > 500
            pushed = value(found, "journal_pushed_bytes_total")
            assert pushed > 500
        await gone(served)
        # What a connection has sent stays counted when it is closed.
        assert value(await families(served), "journal_pushed_bytes_total") == pushed


async def gone(served: Served) -> None:
    with trio.fail_after(PATIENCE_S):
        while served.server.statistics.connections:
            await trio.sleep(0.01)


async def test_refusals_are_counted_by_what_was_wrong(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__max_connections=2) as served, served.client() as client:
        await client.send(frames.build(Op.DELETE_SHARD, 99, encode(messages.NameRequest("none"))))
        await client.receive()
        async with served.stream() as broken:
            await broken.send_all(b"\xff" * 100)
            assert await RawClient(broken).receive_until_closed()
        with trio.fail_after(PATIENCE_S):
            while served.server.statistics.connections > 1:
                await trio.sleep(0.01)
        async with served.client(), served.stream() as third:
            assert await third.receive_some(1) == b""
        found = await families(served)
        assert value(found, "journal_refusals_total", code="shard_not_found") == 1
        assert value(found, "journal_connections_closed_total", reason="protocol") == 1
        assert value(found, "journal_connections_closed_total", reason="max_connections") == 1
        assert value(found, "journal_connections_limit") == 2


async def test_tails_and_the_checkpoint_tell_how_far_they_are_behind(tmp_path: Path) -> None:
    async with serving(tmp_path, storage__flush_interval_ms=60_000) as served:
        await filled(served.engine, "a", 5)
        found = await families(served)
        assert value(found, "journal_tail_bytes") > 0
        assert value(found, "journal_checkpoint_lag_entries") >= 5
        assert value(found, "journal_checkpoints_total") == 0
        await served.engine.parts.checkpointer.checkpoint()
        found = await families(served)
        assert value(found, "journal_tail_bytes") == 0
        assert value(found, "journal_checkpoint_lag_entries") == 0
        assert value(found, "journal_checkpoint_seconds_count") == 1
        assert 0 <= value(found, "journal_checkpoint_age_seconds") < 30
        assert value(found, "journal_disk_free_bytes") > 1 << 20


async def test_segments_are_counted_by_their_state_also_of_shards_that_are_not_open(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await filled(served.engine, "open", 1)
        await filled(served.engine, "memory", 1, MEMORY)
        for name in ("closed", "closed too", "sealed"):
            await filled(served.engine, name, 3)
            await served.engine.roll(name)
        await served.engine.convert("sealed")
    async with serving(tmp_path) as served:
        assert len(served.engine.parts.table.open_shards()) < 5
        await counted(served)
        assert len(served.engine.parts.table.open_shards()) < 5, "counting opened shards"
        found = await families(served)
        segments = {state: value(found, "journal_segments", state=state) for state in SegmentState}
        # What follows a closed segment is open, and empty.
        assert segments == {"memory": 0, "open": 4, "closed": 2, "sealed": 1}
        assert value(found, "journal_segment_bytes", state="closed") > 300
        for name in ("closed", "closed too", "sealed", "open"):
            served.engine.parts.table.by_name(name)
        await counted(served)
        found = await families(served)
        assert {state: value(found, "journal_segments", state=state) for state in SegmentState} == segments
        assert value(found, "journal_damaged_shards") == 0


async def test_a_group_is_as_far_behind_as_its_positions_say(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        commands = served.engine.parts.commands
        for name, records, position in (("a", 10, 4), ("b", 5, 5), ("c", 3, 0)):
            await filled(served.engine, name, records)
            await commands.commit_cursor(name, "group/workers", position, None)
        await commands.commit_cursor("a", "client-17", 1, None)
        # Records that are trimmed are none to be behind of.
        await commands.trim("c", 2)
        await counted(served)
        found = await families(served)
        assert value(found, "journal_cursors") == 4
        assert value(found, "journal_group_lag_max_records", group="workers") == 6
        assert value(found, "journal_group_lag_records", group="workers") == 6 + 0 + 1
        assert len(found["journal_group_lag_records"].samples) == 1, "only groups are named"


async def test_a_cache_queue_shows_what_waits_and_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as served:
        await filled(served.engine, "$queue/orders", 5)
        await filled(served.engine, "$queue/orders/dead-letters", 2)
        await filled(served.engine, "$queue/idle", 2)
        await served.engine.commit_cursor("$queue/orders", "drained", 3, None)
        await served.engine.commit_cursor("$queue/idle", "drained", 2, None)
        half_a_minute_later = served.engine.now_us() + 30_000_000
        monkeypatch.setattr(served.engine.parts.time, "now_us", lambda: half_a_minute_later)
        await counted(served)
        found = await families(served)
        assert value(found, "journal_cache_queue_records", queue="orders") == 2
        assert 30 <= value(found, "journal_cache_queue_oldest_seconds", queue="orders") < 60
        assert value(found, "journal_cache_queue_records", queue="idle") == 0
        assert value(found, "journal_cache_queue_oldest_seconds", queue="idle") == 0
        assert len(found["journal_cache_queue_records"].samples) == 2


async def test_a_cache_queue_in_memory_is_empty_after_a_crash(tmp_path: Path) -> None:
    """It had 1,048,577 records: the offsets that were reserved for records in memory."""
    async with serving(tmp_path) as served:
        await filled(served.engine, "$queue/orders", 5)
        await served.engine.commit_cursor("$queue/orders", "drained", 5, None)
        shard = served.engine.parts.table.by_name("$queue/orders")
        # As a start behind a crash finds it.
        shard.next_offset = shard.next_offset + (1 << 20)
        shard.publish(shard.published_now())
        await counted(served)
        found = await families(served)
        assert value(found, "journal_cache_queue_records", queue="orders") == 0
        assert value(found, "journal_cache_queue_oldest_seconds", queue="orders") == 0


@pytest.mark.slow("fills thousands of shards, groups or messages")
async def test_the_page_is_as_small_with_thousands_of_shards_groups_and_queues(tmp_path: Path) -> None:
    shards, groups, queues = 3_000, 3 * NAMED_GROUPS, 2 * NAMED_QUEUES
    async with serving(tmp_path) as served:
        await counted(served)
        few = (await page(served)).count("\n")
        commands = served.engine.parts.commands
        async with trio.open_nursery() as nursery:
            for number in range(shards):
                nursery.start_soon(filled, served.engine, f"plant/{number}/temperature", 1)
            for number in range(queues):
                nursery.start_soon(filled, served.engine, f"$queue/q{number}", 1 + number % 3)
        async with trio.open_nursery() as nursery:
            for number in range(shards):
                # The first groups are behind in more shards than the others.
                name = f"group/g{number % (groups if number < 2_000 else NAMED_GROUPS)}"
                nursery.start_soon(commands.commit_cursor, f"plant/{number}/temperature", name, 0, None)
        # A name that a user chose must not be taken for the sum of the others.
        await commands.commit_cursor("plant/0/temperature", f"group/{OTHERS}", 0, None)
        await counted(served)
        text = await page(served)
        named = 2 * (NAMED_GROUPS + 1) + 2 * (NAMED_QUEUES + 1)
        assert text.count("\n") <= few + named
        found = {family.name: family for family in text_string_to_metric_families(text)}
        assert value(found, "journal_shards") == shards + queues
        lag = {sample.labels["group"]: sample.value for sample in found["journal_group_lag_records"].samples}
        assert len(lag) == NAMED_GROUPS + 1
        assert sum(lag.values()) == shards + 1
        assert min(found for name, found in lag.items() if name != OTHERS) > shards // groups
        waiting = {sample.labels["queue"]: sample.value for sample in found["journal_cache_queue_records"].samples}
        assert len(waiting) == NAMED_QUEUES + 1
        assert sum(waiting.values()) == sum(1 + number % 3 for number in range(queues))
        assert "temperature" not in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (scripts/install-peers)")
async def test_prometheus_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        await client.append_values(await client.open("a", FILE), b"x")
        await filled(served.engine, "$queue/orders", 1)
        await served.engine.commit_cursor("a", "group/workers", 0, None)
        await counted(served)
        text = await page(served)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
