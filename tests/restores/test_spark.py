"""Exports and streams of Spark whose server, or directory, is restored from a backup between two runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio

from spark_export.discovery import take_snapshot
from spark_export.errors import DataLossError, UnreadableError
from spark_export.export.state import ExportState
from spark_export.history import Origin, Places, plan_history
from spark_export.options import parse_options
from spark_export.positions import StreamPosition
from spark_export.read_history import ReadHistory
from spark_export.server_connection import ServerConnection
from spark_export.snapshot import Snapshot
from spark_export.stream_planning import end_position, next_position, stream_ranges
from tests.restores.restorable_server import restorable_server

pytestmark = pytest.mark.trio


async def seen(read: ReadHistory, **place: str) -> Snapshot:
    return await trio.to_thread.run_sync(partial(take_snapshot, parse_options(place), read=read))


def stored(position: StreamPosition) -> StreamPosition:
    """As the next run of a stream finds it in its checkpoint."""
    return StreamPosition.decode(json.loads(json.dumps(position.encode())))


def kept(places: Places) -> Places:
    """As the next run of an export finds them in the state of the last one."""
    return ExportState.decode(ExportState(1, {}, places).encode(), "here").places


@pytest.mark.slow("restores the server that Spark reads")
async def test_a_restore_to_the_same_end_as_the_one_before_was_not_noticed(tmp_path: Path) -> None:
    """The shard had ended at offset 30 at both, so what was appended after the second one was skipped without a word.

    It takes four seconds: the server is a process that is started six times.
    """
    async with restorable_server(tmp_path) as server:
        await server.append("a", 0, 30)
        await server.back_up()
        await server.append("a", 30, 20)
        first = await seen(ReadHistory(), server=server.url)
        position = stored(end_position(first))
        places = kept(plan_history(first, None, Origin(server=server.url), None).places)
        for _ in range(2):
            await server.restore()
            await server.append("a", 30, 20)
            # A stream.
            found = await seen(position.read_history, server=server.url)
            with pytest.raises(DataLossError, match=r"read up to offset 50, but .* from offset 30 on it holds other"):
                next_position(position, found, parse_options({"server": server.url}, "stream"), None)
            lenient = parse_options({"server": server.url, "failOnDataLoss": "false"}, "stream")
            end = next_position(position, found, lenient, None)
            again = await seen(end.read_history, server=server.url)
            ranges = stream_ranges(position, stored(end), again, lenient)
            assert [(one.first_offset, one.next_offset) for one in ranges] == [(30, 50)]
            position = stored(end)
            assert next_position(position, again, lenient, None) is position
            # An export, with the data directory in front of it.
            origin = Origin(str(tmp_path / "data"), server.url)
            found = await seen(places.read_history, path=origin.path)
            with pytest.raises(DataLossError, match=r"read up to offset 50, but .* from offset 30 on it holds other"):
                plan_history(found, None, origin, places)
            passed = plan_history(found, None, Origin(origin.path, fail_on_data_loss=False), places)
            assert [(one.first_offset, one.next_offset) for one in passed.ranges] == [(30, 50)]
            places = kept(passed.places)
            assert not plan_history(await seen(places.read_history, path=origin.path), None, origin, places).ranges


@pytest.mark.slow("restores the server that Spark reads")
async def test_a_task_read_the_records_of_a_restored_server_for_those_that_were_planned(tmp_path: Path) -> None:
    async with restorable_server(tmp_path) as server:
        await server.append("a", 0, 3)
        await server.back_up()
        await server.append("a", 3, 2)
        planned = await seen(ReadHistory(), server=server.url)
        await server.restore()
        await server.append("a", 3, 2)

        def read() -> None:
            with ServerConnection(planned.store.server, planned.store.restores) as connection:
                list(connection.read("a", planned.shards[0].shard_id, 0, 5))

        with pytest.raises(UnreadableError, match="was restored from a backup after this was planned"):
            await trio.to_thread.run_sync(read)


@pytest.mark.slow("restores the server that Spark reads")
async def test_a_directory_at_rest_shows_its_restore_too(tmp_path: Path) -> None:
    async with restorable_server(tmp_path) as server:
        await server.append("a", 0, 3)
        await server.back_up()
        await server.append("a", 3, 2)
        await server.stop()
        path = str(tmp_path / "data")
        first = await seen(ReadHistory(), path=path)
        await server.start()
        await server.set_back()
        found = await seen(end_position(first).read_history, path=path)
        assert (found.shards[0].changed_offset, found.shards[0].next_offset) == (3, 3)
        with pytest.raises(DataLossError, match=r"read up to offset 5, but .* from offset 3 on it holds other"):
            next_position(end_position(first), found, parse_options({"path": path}, "stream"), None)
