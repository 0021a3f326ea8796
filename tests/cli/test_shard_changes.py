"""`journal shard delete` looks at a shard before it asks, which must not keep a damaged one from being deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.cli.shard_changes import delete
from shards.errors import ShardNotFoundError
from shards.model import ShardConfig
from tests.server.serving import serving


async def test_a_damaged_shard_can_be_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path) as served:
        await served.engine.create_shard("s", ShardConfig())
        served.engine.parts.table.by_name("s").damage = "its log is damaged"
        await delete(f"127.0.0.1:{served.ports['tcp']}", "s", yes=True, as_json=False)
        with pytest.raises(ShardNotFoundError):
            served.engine.parts.table.by_name("s")
    assert capsys.readouterr().out.startswith("s: deleted")
