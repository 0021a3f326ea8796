"""What `journal cluster status` tells of the servers of a store: of real ones that run, end in order and are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from journal.engine import Addresses
from journal.logstore.driver import run
from journal.logstore.keys import server_key
from journal.logstore.ownership import Member
from journal.logstore.probe import Holds, identify
from journal.logstore.servers import delist, enlist, list_servers
from journal.logstore.stores.directory import DirectoryLogStore
from journal.logstore.stores.memory import MemoryLogStore
from journal.server.cluster.listing import listed
from shards.format.record import Record
from shards.model import Mode, ShardConfig
from tests.cluster.servers import Cluster, running
from tests.cluster.writing import SHARD, connected
from tests.patience import PATIENCE_S

STORE = bytes(range(16))


async def status(cluster: Cluster, *options: str) -> str:
    command = [sys.executable, "-m", "journal.cli.main", "cluster", "status", "--store", cluster.address_of_store]
    return (await trio.run_process([*command, *options], capture_stdout=True)).stdout.decode()


async def servers(cluster: Cluster) -> dict[str, dict[str, Any]]:
    found = json.loads(await status(cluster, "--json"))
    return {server["address"]: server for server in found["servers"]}


@pytest.mark.slow("starts three servers")
async def test_status_tells_of_all_servers_whether_they_are_alive_and_how_far_they_are_behind(tmp_path: Path) -> None:
    with running(tmp_path, 3) as cluster:
        async with connected(cluster) as client:
            await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            await client.append(SHARD, [Record(b"x")])
        owner = await cluster.owner()
        first, second = [server for server in cluster.servers if server is not owner]
        with trio.fail_after(PATIENCE_S):
            # The newest entries reach a follower at its next look.
            while any(server["lag"] != 0 or server["life"] != "alive" for server in (await servers(cluster)).values()):
                await trio.sleep(0.1)
        found = await servers(cluster)
        assert {address for address, server in found.items() if server["is_owner"]} == {owner.tcp}
        assert found[owner.tcp]["lsn"] > 1

        first.send(signal.SIGSTOP)
        async with connected(cluster) as client:
            await client.append(SHARD, [Record(b"y")])
        found = await servers(cluster)
        assert (found[first.tcp]["life"], found[first.tcp]["lag"]) == ("silent", None)
        first.send(signal.SIGCONT)

        first.kill()
        second.send(signal.SIGTERM)
        assert second.wait() == 0
        found = await servers(cluster)
        assert set(found) == {owner.tcp, first.tcp}
        assert found[first.tcp]["life"] == "gone"
        told = await status(cluster)
        assert f"\n  {owner.tcp}  owner, alive, at lsn " in told
        assert f"\n  {first.tcp}  follower, gone\n" in told

        first.start()
        with trio.fail_after(PATIENCE_S):
            while (await servers(cluster))[first.tcp]["life"] != "alive":
                await trio.sleep(0.1)
        assert set(await servers(cluster)) == {owner.tcp, first.tcp}


async def test_a_server_is_listed_while_it_runs_and_replaces_what_a_killed_one_left_at_its_address() -> None:
    store = MemoryLogStore()
    killed, other, new = (Member("root", STORE, bytes([number] * 16)) for number in range(3))
    for member, address in ((killed, "a:1"), (other, "b:1")):
        run(store, enlist(member, bytes(16), b'{"tcp":"%s"}' % address.encode()))
    async with listed(store, new, Addresses("a:1", "a:2")):
        found = run(store, list_servers("root", STORE))
        assert [server.node_id for server in found] == [other.node_id, new.node_id]
    assert [server.node_id for server in run(store, list_servers("root", STORE))] == [other.node_id]


async def test_a_list_that_cannot_be_read_keeps_no_server_from_joining() -> None:
    store = MemoryLogStore()
    store.create(server_key("root", bytes(16)), b"what another program wrote")
    async with listed(store, Member("root", STORE, b"n" * 16), Addresses("a:1")):
        pass
    run(store, delist("root", bytes(16)))
    assert run(store, list_servers("root", STORE)) == []


@pytest.mark.slow("runs the command four times")
def test_status_of_a_place_without_a_log_fails_and_says_why(tmp_path: Path) -> None:
    """It said that nobody owned the store, or printed an empty one with --json, and scripts went on."""
    for name in ("files", "empty"):
        (tmp_path / name).mkdir()
    run(DirectoryLogStore(str(tmp_path / "files")), identify("journal", STORE, STORE, STORE, Holds.FILES))
    expected = {
        "files": "is the identity of the files of a store whose log is elsewhere (--store): give the place of the log",
        "empty": "there is no store yet",
    }
    for name, reason in expected.items():
        for options in ([], ["--json"]):
            command = [
                sys.executable,
                "-m",
                "journal.cli.main",
                "cluster",
                "status",
                "--store",
                f"file://{tmp_path / name}",
            ]
            done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            assert (done.returncode, done.stdout) == (1, "")
            assert reason in done.stderr
