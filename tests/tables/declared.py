"""Declared tables of the tests, and their rows as other programs read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from deltalake import DeltaTable

from spark_export.tables.declaration import TableDeclaration
from spark_export.tables.updater import AddedBatch, TableUpdater

TOPIC = "plant/1/temperature"
FIELDS = {"line": "topic[1]", "temperature": "$.temperature"}
TYPES = {"temperature": "float"}
Row = tuple[Any, ...]
COLUMNS = ("shard", "offset", "line", "temperature", "problem")


def declared(place: Path, **changes: Any) -> TableDeclaration:
    """The table ``readings`` in the directory ``table`` of a place."""
    settings: dict[str, Any] = {
        "name": "readings",
        "directory": str(place / "table"),
        "topics": ("plant/#",),
        "fields": FIELDS,
        "types": TYPES,
        **changes,
    }
    return TableDeclaration(**settings)


def source(place: Path) -> dict[str, str]:
    """The data directory ``data`` of a place."""
    return {"path": str(place / "data")}


def tree(place: Path) -> dict[str, str]:
    """The tree of sealed segments in the directory ``data`` of a place, which needs no engine to be read."""
    return {"path": str(place / "data/sealed")}


def payloads(first: int, count: int) -> list[bytes]:
    return [b'{"temperature": %d.5}' % number for number in range(first, first + count)]


def update(table: TableDeclaration, where: dict[str, str], **more: Any) -> list[AddedBatch]:
    """Add all batches that there are."""
    added = []
    with TableUpdater(table, where, **more) as updater:
        while (batch := updater.add_batch()) is not None:
            added.append(batch)
    return added


def by_deltalake(root: str) -> list[Row]:
    table = DeltaTable(root).to_pyarrow_table(columns=list(COLUMNS))
    return list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))


def by_polars(root: str) -> list[Row]:
    return pl.scan_delta(root).select(COLUMNS).collect().rows()


def by_duckdb(root: str) -> list[Row]:
    with duckdb.connect() as database:
        database.register("readings", DeltaTable(root).to_pyarrow_dataset())
        return database.sql('select shard, "offset", line, temperature, problem from readings').fetchall()


READERS: list[Callable[[str], list[Row]]] = [by_deltalake, by_polars, by_duckdb]


def rows(table: TableDeclaration) -> list[Row]:
    """Rows in the order of shards and offsets, after every reader has found the same."""
    found = [sorted(reader(table.directory), key=lambda row: row[:2]) for reader in READERS]
    assert found[0] == found[1] == found[2]
    return found[0]


def offsets(table: TableDeclaration) -> list[tuple[str, int]]:
    """Shard and offset of each row, as often as it is there."""
    found = DeltaTable(table.directory).to_pyarrow_table(columns=["shard", "offset"])
    return sorted(zip(found.column("shard").to_pylist(), found.column("offset").to_pylist(), strict=True))


def expected(*counts: tuple[str, int]) -> list[tuple[str, int]]:
    return sorted((shard, offset) for shard, count in counts for offset in range(count))
