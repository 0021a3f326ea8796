"""A URL opens its engine and imports no other one's dependencies."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from broker_adapter import open_adapter
from broker_adapter.opening import directory_of
from journal.protocol.errors import ConnectionLostError
from shards.errors import DataDirectoryError, InvalidRequestError
from shards.model import ShardConfig
from shards.seams.rocks_store import RocksStore
from tests.patience import PATIENCE_S
from tests.server.serving import serving

EXTRAS = (
    "rocksdict",
    "cattrs",
    "starlette",
    "structlog",
    "cyclopts",
    "rich",
    "pyspark",
    "pyarrow",
    "numpy",
    "trio_websocket",
)


@pytest.mark.parametrize("url", ["", "memory", "redis://localhost", "/var/lib/broker", "memory:x"])
async def test_a_url_of_no_engine_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        async with open_adapter(url):
            pass


def test_a_directory_is_taken_from_the_url() -> None:
    assert directory_of("rocksdb:/var/lib/a%20b") == "/var/lib/a b"
    assert directory_of("rocksdb:data") == "data"
    for url in ("rocksdb:", "rocksdb://host/data"):
        with pytest.raises(InvalidRequestError, match="must name a directory"):
            directory_of(url)


async def test_a_program_that_says_who_it_is_is_shown_by_that_name(tmp_path: Path) -> None:
    """Brokers were shown as `client-3ba6bf29e38d`. Two that have one name must not be ended together."""
    async with serving(tmp_path) as served:
        url = f"journal://127.0.0.1:{served.ports['tcp']}"
        async with open_adapter(url, name="broker-1") as one, open_adapter(url, name="broker-1") as other:
            assert one.client_name.startswith("broker-1-")
            assert one.client_name != other.client_name


async def test_a_server_that_does_not_answer_is_an_error_unless_the_caller_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Programs hung for ever, without a word, when their server was not there."""
    url = "journal://127.0.0.1:1"
    began_s = trio.current_time()
    with pytest.raises(ConnectionLostError, match=r"gave up after 10 s.*no server at tcp://127\.0\.0\.1:1"):
        async with open_adapter(url):
            pass
    assert 10 <= trio.current_time() - began_s < 60
    with pytest.raises(ConnectionLostError, match=r"gave up after 0\.5 s"):
        async with open_adapter(url, first_within_s=0.5):
            pass
    with trio.move_on_after(1000) as patience:
        async with open_adapter(url, first_within_s=math.inf):
            pass
    assert patience.cancelled_caught


@pytest.mark.parametrize("scheme", ["rocksdb", "embedded"])
async def test_a_directory_in_use_is_refused(tmp_path: Path, scheme: str) -> None:
    async with open_adapter(f"{scheme}:{tmp_path}"):
        with pytest.raises(DataDirectoryError, match=r"in use|used by"):
            async with open_adapter(f"{scheme}:{tmp_path}"):
                pass


async def test_rocksdb_is_another_name_for_embedded(tmp_path: Path) -> None:
    async with open_adapter(f"rocksdb:{tmp_path}/data") as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"v"])
    async with open_adapter(f"embedded:{tmp_path}/data") as adapter:
        assert (await adapter.describe_shard("s")).next_offset == 1


async def test_a_directory_of_the_former_rocksdb_engine_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """It kept its database in the directory itself."""
    RocksStore(str(tmp_path)).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DataDirectoryError, match=r"holds a RocksDB database.*choose an empty directory"):
        async with open_adapter(f"rocksdb:{tmp_path}"):
            pass
    assert sorted({path.name for path in tmp_path.iterdir()} - {"LOCK"}) == sorted(set(before) - {"LOCK"})


async def test_a_store_in_memory_uses_no_thread_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    for name in ("open", "mkdir", "makedirs", "listdir"):
        monkeypatch.setattr(f"os.{name}", refuse)
    monkeypatch.setattr("trio.to_thread.run_sync", refuse)
    before = threading.active_count()
    async with open_adapter("memory:") as adapter:
        await adapter.create_shard("s", ShardConfig(segment_bytes=64 << 10))
        for number in range(40):
            await adapter.append("s", [bytes([number]) * 5_000])
        assert len((await adapter.describe_shard("s")).segments) > 1
        assert (await adapter.read("s", 0)).next_offset > 0
        assert threading.active_count() == before


def test_the_base_installation_is_enough_for_a_store_in_memory(tmp_path: Path) -> None:
    nowhere = tmp_path / "data"
    program = f"""
import sys
for extra in {EXTRAS!r}:
    sys.modules[extra] = None
import trio, broker_adapter, broker_adapter.engines.journal
async def main():
    async with broker_adapter.open_adapter("memory:") as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"v"])
    for url, missing in (("rocksdb:{nowhere}", "rocksdict"), ("embedded:{nowhere}", "rocksdict")):
        try:
            async with broker_adapter.open_adapter(url):
                pass
        except broker_adapter.opening.InvalidRequestError as error:
            assert missing in str(error), error
        else:
            raise AssertionError
trio.run(main)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_an_engine_that_misses_a_package_only_when_it_opens_says_so_too(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["rocksdict"] = None
import trio, broker_adapter
async def main():
    try:
        async with broker_adapter.open_adapter("embedded:{tmp_path}/data"):
            pass
    except broker_adapter.opening.InvalidRequestError as error:
        assert "rocksdict" in str(error) and "pip install 'rocksdict" in str(error), error
    else:
        raise AssertionError
trio.run(main)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
