"""Objects that are missing in the log store: a takeover refuses them by name, and makes nothing final."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import pytest
import trio

from journal.client.client import Client
from journal.engine.shared_log.claims import window_of
from journal.logstore import run
from journal.logstore.errors import LogDamagedError, StoreUnreachableError
from journal.logstore.keys import Position, slot_key
from journal.logstore.objects import Kind, decode_object
from journal.logstore.ownership import Member, own
from journal.logstore.settling import settle_create
from journal.logstore.stores.directory import DirectoryLogStore
from journal.logstore.stores.memory import MemoryLogStore
from journal.logstore.writing import SlotWriter
from shards.format.batch import read_records
from shards.format.record import Record
from shards.model import Mode, SegmentKind, ShardConfig
from tests.cluster import fetching
from tests.cluster.numbers import QUICK
from tests.cluster.servers import Server, remove, running
from tests.cluster.writing import SHARD, connected, value_of
from tests.patience import PATIENCE_S

OWNER: Final = Member("root", b"S" * 16, b"N" * 16)
NEXT: Final = Member("root", b"S" * 16, b"R" * 16)


def log_of(count: int) -> tuple[MemoryLogStore, int]:
    """A store with so many slots, written one after the other, and their epoch."""
    store = MemoryLogStore()
    epoch = run(store, own(OWNER, secrets.token_bytes(16))).epoch
    writer = SlotWriter(OWNER, epoch, 1)
    for number in range(count):
        write = writer.prepare(b"%d" % number, number + 2, secrets.token_bytes(16))
        writer.settle(write.position, run(store, settle_create(write.key, write.data)).is_ours)
    return store, epoch


@pytest.mark.parametrize("missing", [0, 4, 8])
def test_a_slot_that_is_missing_before_others_is_refused_and_gets_no_fence(missing: int) -> None:
    """It counted as the end of the log, and a fence in its place made the loss of the later slots final."""
    store, epoch = log_of(10)
    key = slot_key("root", Position(epoch, missing))
    store.delete(key)
    with pytest.raises(
        LogDamagedError, match=f"{key} is missing, but {slot_key('root', Position(epoch, missing + 1))}"
    ):
        run(store, own(NEXT, secrets.token_bytes(16), window_of=window_of))
    assert store.get(key) is None


def test_a_store_without_a_hole_is_owned() -> None:
    store, epoch = log_of(10)
    run(store, own(NEXT, secrets.token_bytes(16), window_of=window_of))
    data = store.get(slot_key("root", Position(epoch, 10)))
    assert data is not None
    assert decode_object("key", data).kind is Kind.FENCE


def test_a_directory_that_is_not_there_is_no_empty_store(tmp_path: Path) -> None:
    """A file system that is not mounted looked like a store of which everything was deleted."""
    (tmp_path / "store").mkdir()
    store = DirectoryLogStore(tmp_path / "store")
    store.create("root/log/1", b"x")
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(StoreUnreachableError):
        store.get("root/log/1")
    with pytest.raises(StoreUnreachableError):
        store.list_after("root/log/")
    with pytest.raises(StoreUnreachableError):
        store.delete("root/log/1")


async def fill(client: Client) -> None:
    await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
    for number in range(10):
        await client.append(SHARD, [Record(value=b"%d" % number)])


@pytest.mark.slow("starts a server twice")
async def test_a_server_with_an_empty_directory_does_not_begin_in_the_middle_of_a_log(tmp_path: Path) -> None:
    with running(tmp_path, 1) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await fill(client)
        server.kill()
        remove(server.data)
        first = tmp_path / "store" / "journal" / "log" / "0000000001" / "0000000000000000"
        first.unlink()
        server.start()
        assert server.wait() != 0
        assert "journal/log/0000000001/0000000000000000 is missing, but" in server.log.read_text()
        assert not first.exists()


async def fill_until_converted(server: Server, client: Client) -> Path:
    """Append until records are in a file of the history; its name in the log store."""
    await fill(client)
    with trio.fail_after(PATIENCE_S):
        # A file is stored before the entry that names it is in the log.
        while SegmentKind.PARQUET not in {segment.kind for segment in (await client.describe_shard(SHARD)).segments}:
            await trio.sleep(0.1)
    folder = Path(server.data).parent / "store" / "journal" / "file"
    return min(path for path in folder.glob("*") if not path.name.startswith("0000000-"))


@pytest.mark.slow("starts a server twice, and waits until segments are converted")
async def test_a_server_that_takes_over_without_a_file_that_is_needed_ends_with_its_name(tmp_path: Path) -> None:
    """It served, and acknowledged records could not be read, also where another server still had the file."""
    with running(tmp_path, 1, settings=QUICK) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            file = await fill_until_converted(server, client)
        server.kill()
        remove(server.data)
        held = [(path, path.read_bytes()) for path in sorted(file.parent.glob(f"{file.name[:24]}*"))]
        for path, _ in held:
            path.unlink()
        server.start(*QUICK)
        assert server.wait() != 0
        assert f"the log store has not got the file {file.name[:24]}, in which shards have records" in (
            server.log.read_text()
        )
        for path, content in held:
            path.write_bytes(content)
        server.start(*QUICK)
        async with connected(cluster) as client:
            reply = await client.fetch(SHARD, 0)
            assert [value_of(record) for record in read_records(reply.batches, start_offset=0)][:1] == [0]


@pytest.mark.slow("starts a server twice, and waits until segments are converted")
async def test_a_file_in_which_no_shard_has_records_any_more_may_be_missing(tmp_path: Path) -> None:
    with running(tmp_path, 1, settings=QUICK) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            file = await fill_until_converted(server, client)
            await client.delete_shard(SHARD)
            server.kill()
            remove(server.data)
            for path in file.parent.glob(f"{file.name[:24]}*"):
                path.unlink()
            server.start(*QUICK)
            assert await client.list_shards("#") == []


async def test_a_file_that_could_not_be_found_is_looked_for_again_at_a_takeover() -> None:
    """A follower looked for it once. When the folder of the files was back, it took over without the file."""
    store, record = MemoryLogStore(), fetching.record_of(7)
    follower = fetching.Follower(store, OWNER, [record])
    fetcher = follower.fetcher
    missing = await fetcher.fetch(is_last=False)
    assert missing == [record]
    fetching.put(store, OWNER, 7)
    assert await fetcher.fetch(is_last=False) == [record]
    assert not follower.has(record), "a log store is not asked again and again"
    assert await fetcher.fetch(is_last=True) == []
    assert follower.has(record)
