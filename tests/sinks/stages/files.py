"""A directory, read by DuckDB. It is taken away and put back as a mount is."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import duckdb

from broker_adapter.sinks import Row, Value
from tests.sinks.proxy import Proxy
from tests.sinks.stage import REFUSED, Misconfiguration, row


class FilesStage:
    kind = "files"
    proxy: Proxy | None = None

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = str(directory)
        self.settings: dict[str, object] = {"directory": str(directory), "types": {"n": "int"}}
        self._away = directory.with_name("away")

    async def start(self) -> None:
        self.directory.mkdir()

    async def kill(self) -> None:
        self.directory.rename(self._away)

    async def restart(self) -> None:
        self._away.rename(self.directory)

    async def rows(self) -> Sequence[Row]:
        if not list(self.directory.glob("*.parquet")):
            return []
        with duckdb.connect() as connection:
            found = connection.sql(
                f"SELECT topic, n, body, value FROM read_parquet('{self.directory}/*.parquet', filename = true) "
                "ORDER BY filename, file_row_number"
            )
            return [dict(zip(found.columns, each, strict=True)) for each in found.fetchall()]

    def refused(self) -> Row | None:
        return {**row(0), "body": "\ud800"}

    def held(self, value: Value) -> object:
        if value is None:
            return None
        if value == "\ud800":
            return REFUSED
        if isinstance(value, str):
            return value
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                value = {"base64": base64.b64encode(value).decode()}
        return json.dumps(value, separators=(",", ":"))

    def misconfigured(self) -> dict[str, Misconfiguration]:
        elsewhere = self.directory / "elsewhere"
        (self.directory / "file").touch()
        return {
            "no such directory": Misconfiguration({"directory": str(elsewhere)}, "create the directory"),
            "no directory": Misconfiguration({"directory": str(self.directory / "file")}, "name a directory"),
        }


@asynccontextmanager
async def open_stage(directory: Path) -> AsyncIterator[FilesStage]:
    stage = FilesStage(directory / "sink")
    await stage.start()
    yield stage
