"""Tables of a running server: the command as a process, restarts of both, and a restore from a backup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from broker_adapter import open_adapter
from spark_export.errors import DataLossError
from tests.patience import PATIENCE_S
from tests.restores.restorable_server import RestorableServer, restorable_server
from tests.tables.declared import declared, expected, offsets, update

pytestmark = [pytest.mark.trio, pytest.mark.slow("starts a server and the command as processes")]

SHARDS = ("plant/a", "plant/b")
LOOK_S = 0.1


def write_config(place: Path, server: str, **settings: object) -> Path:
    """The table of `declared`, whose payloads here are numbers."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"interval_s": 1, **settings}.items()]
    file = place / "tables.toml"
    file.write_text(
        f'[source]\nserver = "{server}"\n[[table]]\nname = "readings"\ndirectory = "{place}/table"\n'
        f'topics = ["plant/#"]\nfields = {{ number = "json" }}\ntypes = {{ number = "int" }}\n' + "\n".join(lines)
    )
    return file


@contextmanager
def following(config: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    log = config.parent / "tables.log"
    with log.open("a") as errors, (config.parent / "tables.out").open("a") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "spark_export.cli.main", "tables", str(config), "--json", *arguments],
            stdout=out,
            stderr=errors,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "JOURNAL_SERVER"},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)


async def until_rows(place: Path, wanted: list[tuple[str, int]]) -> None:
    """Wait until the table has these rows; none is ever there twice."""
    found: list[tuple[str, int]] = []
    with trio.move_on_after(PATIENCE_S):
        while found != wanted:
            await trio.sleep(LOOK_S)
            try:
                found = await trio.to_thread.run_sync(offsets, declared(place))
            except DeltaError:
                continue  # there is no table yet
            assert len(found) == len(set(found))
    assert found == wanted, (place / "tables.log").read_text()


def reports(place: Path) -> list[dict[str, Any]]:
    """What the commands have printed so far."""
    return [
        json.loads(line) for line in (place / "tables.out").read_text().splitlines(keepends=True) if line[-1] == "\n"
    ]


async def until_reported(place: Path, records: int) -> None:
    """Wait until the batches that were printed have so many records: each is printed after it is in the table."""
    with trio.fail_after(PATIENCE_S):
        while sum(each["records"] for each in reports(place) if each["event"] == "batch") < records:
            await trio.sleep(LOOK_S)


async def append(server: RestorableServer, first: int, count: int) -> None:
    for shard in SHARDS:
        await server.append(shard, first, count)


async def answered(server: RestorableServer) -> list[tuple[str, int, int]]:
    """All records as the server itself reads them: shard, offset and number."""
    found = []
    async with open_adapter(server.url) as adapter:
        for shard in SHARDS:
            result = await adapter.read(shard, 0, max_records=1000)
            found += [(shard, record.offset, int(record.value)) for record in result.records]
    return found


async def test_a_table_follows_a_server_through_restarts_of_both_and_agrees_with_it(tmp_path: Path) -> None:
    async with restorable_server(tmp_path) as server:
        await append(server, 0, 5)
        config = write_config(tmp_path, server.address)
        with following(config) as process:
            await until_rows(tmp_path, expected(*((shard, 5) for shard in SHARDS)))
            server.kill()
            # It finds no server meanwhile, whether it looks now or not.
            await server.start()
            await append(server, 5, 5)
            await until_rows(tmp_path, expected(*((shard, 10) for shard in SHARDS)))
            await until_reported(tmp_path, 20)
            process.kill()
        await append(server, 10, 5)
        with following(config) as process:
            await until_rows(tmp_path, expected(*((shard, 15) for shard in SHARDS)))
            process.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(process.wait, PATIENCE_S) == 0
        table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["shard", "offset", "number"])
        assert sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)) == await answered(server)
    assert (
        (tmp_path / "tables.log").read_text().endswith("journal-spark: stopped; the same command continues from here\n")
    )
    batches = [each for each in reports(tmp_path) if each["event"] == "batch"]
    assert sum(each["records"] for each in batches) == 30
    assert [each["batch"] for each in batches] == list(range(1, 1 + len(batches)))
    assert not any(each["is_final"] for each in reports(tmp_path) if each["event"] == "failure")


async def test_records_of_another_history_are_noticed_after_a_restore(tmp_path: Path) -> None:
    """The offsets from the end of the backup on have other records, which the table would lack without a word."""

    async def updated(**changes: Any) -> list[Any]:
        table = declared(tmp_path, fields={"number": "json"}, types={"number": "int"}, **changes)
        return await trio.to_thread.run_sync(partial(update, table, {"server": server.url}))

    async with restorable_server(tmp_path) as server:
        await server.append("plant/a", 0, 3)
        await server.back_up()
        await server.append("plant/a", 3, 2)
        assert [batch.records for batch in await updated()] == [5]
        await server.restore()
        await server.append("plant/a", 100, 2)
        with pytest.raises(DataLossError, match=r"read up to offset 5, but .* from offset 3 on it holds other records"):
            await updated()
        assert [batch.records for batch in await updated(fail_on_data_loss=False)] == [2]
        assert await updated() == []
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["offset", "number"])
    found = sorted(zip(table.column("offset").to_pylist(), table.column("number").to_pylist(), strict=True))
    assert found == [(0, 0), (1, 1), (2, 2), (3, 3), (3, 100), (4, 4), (4, 101)]
