"""A URL opens its engine and imports no other one's dependencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker_adapter import open_adapter
from broker_adapter.opening import directory_of
from shards.errors import DataDirectoryError, InvalidRequestError
from tests.patience import PATIENCE_S

EXTRAS = ("rocksdict", "cattrs", "starlette", "cyclopts", "rich", "pyspark", "pyarrow", "numpy", "trio_websocket")


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


@pytest.mark.parametrize("scheme", ["rocksdb", "embedded"])
async def test_a_directory_in_use_is_refused(tmp_path: Path, scheme: str) -> None:
    async with open_adapter(f"{scheme}:{tmp_path}"):
        with pytest.raises(DataDirectoryError, match=r"in use|used by"):
            async with open_adapter(f"{scheme}:{tmp_path}"):
                pass


def test_the_base_installation_is_enough_to_import_the_adapter() -> None:
    program = f"""
import sys
for extra in {EXTRAS!r}:
    sys.modules[extra] = None
import trio, broker_adapter, broker_adapter.engines.journal
async def main():
    async with broker_adapter.open_adapter("memory:") as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"v"])
    for url, missing in (("rocksdb:/nowhere", "rocksdict"), ("embedded:/nowhere", "cattrs")):
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
        assert "rocksdict" in str(error) and "journal-engine[embedded]" in str(error), error
    else:
        raise AssertionError
trio.run(main)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
