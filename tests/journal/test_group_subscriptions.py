"""A group that cannot read a shard stops there, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import trio

from journal.config import ServerConfig, StorageConfig
from journal.engine import open_engine
from shards.batch import encode_values
from shards.errors import CorruptionError
from shards.model import ShardConfig
from shards.position import Start
from shards.pushes import Notice
from tests.patience import PATIENCE_S

MIB = 1 << 20
CONFIG = ServerConfig(
    storage=StorageConfig(journal_file_bytes=4 * MIB, journal_budget_bytes=16 * MIB, disk_reserve_bytes=0)
)


async def test_a_group_that_meets_a_missing_file_says_so_and_the_shard_takes_appends(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        await engine.control.create_shard("s", ShardConfig())
        shard = engine.table.by_name("s")
        batch = encode_values([b"x"], timestamp_us=1)
        await engine.append(shard, batch)
        await engine.maintenance.checkpoint()
        for log in tmp_path.rglob("data/log/*/*.log"):
            log.unlink()
        ready = trio.Event()
        member = await engine.subscriptions.subscribe(
            shard="s",
            topic_filter=None,
            start=Start.earliest(),
            group="g",
            on_ready=ready.set,
            credit_bytes=lambda: MIB,
        )
        with trio.fail_after(PATIENCE_S):
            await ready.wait()
            notice = await member.take(MIB)
        assert isinstance(notice, Notice)
        assert notice.event == "error"
        assert isinstance(notice.error, CorruptionError)
        assert (await engine.append(shard, batch)).base_offset == 1
        assert not shard.damage
        member.close()
