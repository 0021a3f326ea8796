"""Checkpoints in the log store: an empty directory begins with one, and what is before the last two is deleted."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import trio

from journal.client.client import Client
from tests.cluster.numbers import QUICK, Numbers, create, restart
from tests.cluster.servers import Cluster, remove, running
from tests.cluster.writing import connected
from tests.patience import PATIENCE_S


def store_of(cluster: Cluster) -> Path:
    return Path(cluster.address_of_store.removeprefix("file://")) / "journal"


def checkpoints(cluster: Cluster) -> list[str]:
    return sorted(path.name for path in (store_of(cluster) / "checkpoint").glob("*"))


def slots(cluster: Cluster) -> list[str]:
    return sorted(f"{path.parent.name}-{path.name}" for path in (store_of(cluster) / "log").glob("*/*"))


async def another_checkpoint(cluster: Cluster, client: Client, numbers: Numbers, count: int = 1) -> None:
    """Append until so many more checkpoints are in the log store."""
    for _ in range(count):
        before = max(checkpoints(cluster), default="")
        with trio.fail_after(PATIENCE_S):
            while max(checkpoints(cluster), default="") == before:
                await numbers.append(client, 1)
                await trio.sleep(0.1)


@pytest.mark.smoke
@pytest.mark.slow("waits until closed segments are converted, three times, and starts servers")
async def test_an_empty_directory_begins_with_a_checkpoint_when_the_log_before_it_is_gone(tmp_path: Path) -> None:
    numbers = Numbers()
    with running(tmp_path, 1, settings=QUICK) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await create(client)
            first = slots(cluster)[:10]
            await another_checkpoint(cluster, client, numbers, 3)
            with trio.fail_after(PATIENCE_S):
                while set(first) & set(slots(cluster)) or len(checkpoints(cluster)) > 2:
                    await trio.sleep(0.05)
            for with_nothing in (True, False):
                restart(server, with_nothing=with_nothing)
                await numbers.go_on(client)
            assert "began with the checkpoint at epoch 1" in server.log.read_text()
            command = [sys.executable, "-m", "journal.cli.main", "cluster", "status"]
            told = await trio.run_process([*command, "--store", cluster.address_of_store], capture_stdout=True)
            checkpoint, owner = r"checkpoint: up to lsn [0-9]+; slots after it: [0-9]+", r"owner, alive, at lsn [0-9]+"
            assert re.search(rf"\n{checkpoint}\n  {server.tcp}  {owner}\n$", told.stdout.decode())
            counted = dict(
                re.findall(
                    r'^journal_log_requests_total{kind="([a-z]+)"} (.+)$', server.get("/metrics")[1], re.MULTILINE
                )
            )
            assert sorted(counted) == ["create", "delete", "get", "list"]
            # It has read a checkpoint and slots, and has written slots of its own.
            assert min(float(counted[kind]) for kind in ("create", "get", "list")) > 0


@pytest.mark.slow("waits until closed segments are converted, and starts servers")
async def test_files_in_a_store_of_their_own_are_found_again_by_a_server_with_an_empty_directory(
    tmp_path: Path,
) -> None:
    numbers = Numbers()
    (tmp_path / "objects").mkdir()
    with running(tmp_path, 1, settings=QUICK, objects=f"file://{tmp_path / 'objects'}") as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await create(client)
            await another_checkpoint(cluster, client, numbers, 3)
            server.kill()
            remove(server.data)
            server.start(*QUICK)
            await numbers.go_on(client)
            assert "began with the checkpoint at epoch 1" in server.log.read_text()
        assert list((tmp_path / "objects" / "journal" / "file").iterdir())
        assert not (store_of(cluster) / "file").exists()


@pytest.mark.slow("waits until closed segments are converted, three times, and starts servers")
async def test_a_server_that_was_away_while_the_log_was_deleted_begins_again_with_a_checkpoint(tmp_path: Path) -> None:
    numbers = Numbers()
    with running(tmp_path, 2, settings=QUICK) as cluster:
        async with connected(cluster) as client:
            await create(client)
            owner = await cluster.owner()
            (other,) = await cluster.followers(owner)
            await numbers.append(client, 5)
            other.kill()
            await another_checkpoint(cluster, client, numbers, 3)
            other.start(*QUICK)
            await cluster.followers(owner)
            owner.kill()
            await numbers.go_on(client)
            assert await cluster.owner() is other
            assert f"{other.data} is emptied, and gets everything from the log store again" in other.log.read_text()


@pytest.mark.slow("waits until closed segments are converted, and starts servers")
async def test_a_checkpoint_of_which_a_file_is_missing_is_not_used(tmp_path: Path) -> None:
    """A server that was suspended can store one when it wakes up, after the new owner has deleted a file of it."""
    numbers = Numbers()
    with running(tmp_path, 1, settings=QUICK) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await create(client)
            await another_checkpoint(cluster, client, numbers, 2)
            server.kill()
            names = sorted((store_of(cluster) / "file").glob("0000000-*"), key=lambda path: path.stat().st_mtime_ns)
            # Of the files of checkpoints: the newest checkpoint alone has it.
            names[-1].unlink()
            restart(server, with_nothing=True)
            await numbers.go_on(client)
            # It makes whole ones again.
            await another_checkpoint(cluster, client, numbers, 2)
            restart(server, with_nothing=True)
            await numbers.go_on(client)
