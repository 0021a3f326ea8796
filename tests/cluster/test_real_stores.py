"""The log of a store in an object store and in a database: takeovers, and a log store that is away for a while."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from tests.cluster.numbers import QUICK, Numbers, create, restart
from tests.cluster.servers import running
from tests.cluster.writing import check, connected, writing
from tests.logstore import seaweed_server
from tests.patience import PATIENCE_S
from tests.sinks import postgresql_server


def seaweed() -> tuple[str, Mapping[str, str]]:
    server = seaweed_server.shared_server()
    environment = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": seaweed_server.KEY,
        "AWS_SECRET_ACCESS_KEY": seaweed_server.SECRET,
    }
    return f"s3://{seaweed_server.BUCKET}/{uuid.uuid4().hex}", environment


def postgresql_and_seaweed() -> tuple[str, str, Mapping[str, str]]:
    """The log in a database, the files in a bucket."""
    (log, password), (files, keys) = postgresql(), seaweed()
    return log, files, {**password, **keys}


def postgresql() -> tuple[str, Mapping[str, str]]:
    server = postgresql_server.shared_server()
    server.ensure_running()
    place = (
        f"postgresql://{postgresql_server.USER}@{postgresql_server.HOST}:{server.port}/{server.clear_database()}#plant"
    )
    return place, {"PGPASSWORD": postgresql_server.PASSWORD}


@pytest.mark.slow("starts a log store and two servers, and kills one")
@pytest.mark.parametrize("log_store", [seaweed, postgresql])
async def test_nothing_acknowledged_is_lost_or_doubled_when_the_owner_is_killed(
    tmp_path: Path, log_store: object
) -> None:
    assert callable(log_store)
    store, environment = log_store()
    with running(tmp_path, 2, store, environment) as cluster:
        async with writing(cluster) as writer:
            await writer.wait_for(20)
            owner = await cluster.owner()
            owner.kill()
            await writer.wait_for(20)
        await check(cluster, writer)


@pytest.mark.slow("starts PostgreSQL and a server, and kills PostgreSQL")
async def test_a_server_goes_on_by_itself_when_its_log_store_was_away(tmp_path: Path) -> None:
    store, environment = postgresql()
    database = postgresql_server.shared_server()
    with running(tmp_path, 1, store, environment) as cluster:
        (server,) = cluster.servers
        async with writing(cluster) as writer:
            await writer.wait_for(20)
            database.kill()
            with trio.fail_after(PATIENCE_S):
                while "the log store does not take" not in (await trio.to_thread.run_sync(server.get, "/readyz"))[1]:
                    await trio.sleep(0.05)
            assert server.get("/metrics")[1].find("journal_log_unavailable 1.0") > 0
            database.start()
            await writer.wait_for(20)
            assert await cluster.owner() is server
        await check(cluster, writer)


@pytest.mark.slow("starts log stores and a server, and waits until closed segments are converted")
@pytest.mark.parametrize("divided", [False, True], ids=["SeaweedFS", "PostgreSQL and SeaweedFS"])
async def test_a_server_with_an_empty_directory_begins_with_a_checkpoint_in_a_real_store(
    tmp_path: Path, divided: bool
) -> None:
    numbers = Numbers()
    store, files, environment = postgresql_and_seaweed() if divided else (seaweed()[0], "", seaweed()[1])
    with running(tmp_path, 1, store, environment, QUICK, files) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await create(client)
            for _ in range(2):
                before = await checkpoint_lsn(store, environment)
                with trio.fail_after(PATIENCE_S):
                    while await checkpoint_lsn(store, environment) == before:
                        await numbers.append(client, 1)
            restart(server, with_nothing=True)
            await numbers.go_on(client)
            assert "began with the checkpoint at epoch 1" in server.log.read_text()


async def checkpoint_lsn(store: str, environment: Mapping[str, str]) -> int:
    """What `journal cluster status` says of the newest checkpoint."""
    command = [sys.executable, "-m", "journal.cli.main", "cluster", "status", "--json", "--store", store]
    done = await trio.run_process(command, capture_stdout=True, env={**os.environ, **environment})
    lsn: int = json.loads(done.stdout)["checkpoint_lsn"]
    return lsn
