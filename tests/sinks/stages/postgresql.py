"""The database in the PostgreSQL cluster that all tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from broker_adapter.sinks import Row, Value
from tests.sinks.postgresql_server import USER, PostgresqlServer, shared_server
from tests.sinks.proxy import Proxy, open_proxy
from tests.sinks.stage import COLUMNS, REFUSED, Misconfiguration, row


class PostgresqlStage:
    kind = "postgresql"

    def __init__(self, server: PostgresqlServer, database: str, proxy: Proxy, directory: Path) -> None:
        self.proxy = proxy
        self.server = server
        self.database = database
        self.address = f"postgresql://{USER}@{proxy.address}/{database}"
        self.settings: dict[str, object] = {
            "url": self.address,
            "table": "rows",
            "password_file": str(server.password_file),
        }
        self._wrong_password_file = directory / "wrong"
        self._wrong_password_file.write_text("wrong-secret\n")

    async def start(self) -> None:
        # Text, as the suite's rows have every kind of value in one column.
        columns = "topic text, n bigint CHECK (n >= 0), body text, value text"
        await self.execute(f"CREATE TABLE rows (number bigint GENERATED ALWAYS AS IDENTITY, {columns})")

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self.server.kill)

    async def restart(self) -> None:
        self.server.start()

    async def rows(self) -> Sequence[Row]:
        found = await self.execute(f"SELECT {', '.join(COLUMNS)} FROM rows ORDER BY number")
        return [dict(zip(COLUMNS, each, strict=True)) for each in found]

    async def execute(self, statement: str, user: str = USER) -> list[tuple]:
        """Run a statement past the sink."""

        def run() -> list[tuple]:
            with self.server.connect(self.database, user) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []

        return await trio.to_thread.run_sync(run)

    def refused(self) -> Row | None:
        return row(0, body="a text with \x00 in it")

    def held(self, value: Value) -> object:
        if value in ("a\x00b", "\ud800", b"\xff\x00\xfe"):
            return REFUSED
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, dict):
            return '{"a":[1,null,{"b":"c"}],"d":true}'
        if isinstance(value, list):
            return '[1,"two",null]'
        if isinstance(value, bool):
            return "true"
        return value if value is None else str(value)

    def misconfigured(self) -> dict[str, Misconfiguration]:
        return {
            "another password": Misconfiguration(
                {"password_file": str(self._wrong_password_file)}, ".*password authentication failed.*password_file"
            ),
            "no password": Misconfiguration({"password_file": ""}, ".*password.*password_file"),
            "no file of that name": Misconfiguration({"password_file": "/nowhere/at/all"}, ".*/nowhere/at/all.*read"),
            "no such table": Misconfiguration({"table": "absent"}, ".*no table absent.*CREATE TABLE"),
            "no such database": Misconfiguration({"url": f"{self.address}_not"}, '.*database "test_.*" does not exist'),
        }


@asynccontextmanager
async def open_stage(directory: Path) -> AsyncIterator[PostgresqlStage]:
    server = shared_server()
    database = server.clear_database()
    try:
        async with open_proxy(server.port) as proxy:
            stage = PostgresqlStage(server, database, proxy, directory)
            await stage.start()
            yield stage
    finally:
        server.ensure_running()
