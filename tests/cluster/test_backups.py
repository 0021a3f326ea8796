"""A backup of a server of a cluster becomes a server on its own, which needs nothing of the log store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from journal.client import open_client
from tests.cluster.numbers import QUICK, Numbers, create, restart
from tests.cluster.servers import Server, running
from tests.cluster.test_checkpoints import another_checkpoint, store_of
from tests.cluster.writing import connected


def run(*arguments: str, status: int = 0) -> str:
    """What a command prints."""
    done = subprocess.run([sys.executable, "-m", "journal.cli.main", *arguments], capture_output=True, text=True)
    assert done.returncode == status, done
    return done.stdout + done.stderr


@pytest.mark.slow("starts two servers")
async def test_a_follower_is_not_backed_up_while_it_runs(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        (follower,) = await cluster.followers(await cluster.owner())
        refused = await trio.to_thread.run_sync(lambda: run("backup", str(follower.data), f"{tmp_path}/b", status=1))
    assert "does not own the store, or not yet; back up the directory of the owner" in refused


@pytest.mark.slow("waits until closed segments are converted, and starts servers")
@pytest.mark.parametrize(
    "with_nothing", [False, True], ids=["the first server", "a server that began with a checkpoint"]
)
async def test_a_backup_outlives_the_log_store(tmp_path: Path, with_nothing: bool) -> None:
    numbers = Numbers()
    target, restored = str(tmp_path / "backup"), tmp_path / "data-alone"
    with running(tmp_path, 1, settings=QUICK) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await create(client)
            await another_checkpoint(cluster, client, numbers, 2)
            if with_nothing:
                restart(server, with_nothing=True)
                await numbers.go_on(client)
                assert "began with the checkpoint at epoch 1" in server.log.read_text()
            await client.put_state(b"line/1", b"running")
            await trio.to_thread.run_sync(run, "backup", str(server.data), target)
            await numbers.append(client, 3)
        log_store = store_of(cluster)
    shutil.rmtree(log_store)
    numbers.count -= 3

    run("check", target)
    assert "and belongs to a server on its own now: start it without --store" in run("restore", target, str(restored))
    run("check", str(restored))
    alone = Server(tmp_path, "", "alone")
    try:
        alone.start(*QUICK)
        async with open_client(alone.tcp) as client:
            await numbers.go_on(client)
            value = await client.get_state(b"line/1")
            assert value is not None
            assert bytes(value.value) == b"running"
    finally:
        alone.kill()
