"""Options of an export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, get_args

import attrs

from shards.topics.topic_filters import validate_filter
from spark_export.errors import OptionError, without_secrets
from spark_export.history import Origin
from spark_export.typed_fields import check_fields

Format = Literal["parquet", "csv", "json", "jdbc"]
ValueAs = Literal["text", "binary", "json"]
PartitionBy = Literal["date", "topic"]

OWN_COLUMNS: Final = ("shard", "offset", "append_time", "problem", "bad_payload", "date", "topic_dir")
"""What typed rows and the directories of their files have beside their fields."""

_NAME: Final = re.compile(r"[A-Za-z0-9._]{1,64}")
# `run=1e-00000001` would be read as the number 0.1.
_NUMBER_WITH_RUN: Final = re.compile(r"(\d+\.?\d*|\.\d+)[eE]|0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP]")
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


def _one_of(*allowed: str) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def check(_options: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value not in allowed:
            raise OptionError(f"export option {field.name} is {value!r}, it must be one of {', '.join(allowed)}")

    return check


def _filters(given: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(map(validate_filter, [given] if isinstance(given, str) else given))


def _parts(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


@attrs.frozen(kw_only=True)
class ExportOptions:
    """One export: the source, the records, the target, and their form there.

    Attributes:
        target: A directory on any file system that Spark writes, or a JDBC URL.
        format: ``parquet``, ``csv`` or ``json`` (one document per line) for a directory, ``jdbc`` for a database.
        path: A data directory or a tree of sealed segments; may be empty if there is a server.
        server: URL of a server, as ``journal://host:port``; by default the one that uses the data directory, if one
            does.
        topics: MQTT topic filters.
        shards: MQTT topic filters of the shards to read; by default ``topics``.
        name: Name of the export: runs of one name and target continue after the last one. Letters, digits, ``.`` and
            ``_``.
        value_as: How key and value are written. ``binary``: unchanged (base64 in CSV and JSON). ``text``: as text, or
            as base64 if they are not UTF-8; a column says which. ``json``: like ``text``, but a value that is a JSON
            document is marked as JSON in that column; in format ``json`` it is part of the document then. By default
            ``binary`` for Parquet and ``text`` for the others.
        fields: Makes typed rows in place of records: the source of each column, as in the ``fields`` of a bridge.
            Beside them a row has ``shard``, ``offset`` and ``append_time``, and ``problem`` and ``bad_payload`` for a
            record that lacks the value of a column, or has one of another type: then the column is null.
        types: Types of columns of ``fields``: ``text``, ``json``, ``int``, ``float``, ``bool``, ``timestamp`` or
            ``binary``.
        partition_by: Directories below that of the run: ``date`` (of the timestamp, UTC), ``topic``, both or none. Only
            for files.
        table: Table of the database, created if it does not exist.
        properties: Properties of the database connection: ``user``, ``password``, ``driver`` and others of the driver.
        fail_on_data_loss: Whether it is an error that records were trimmed before they were exported, that a shard was
            deleted, or that the store was restored to an older state; otherwise that is only logged.
    """

    target: str = attrs.field(repr=without_secrets)
    format: Format = attrs.field(default="parquet", validator=_one_of(*get_args(Format)))
    path: str = ""
    server: str = ""
    topics: tuple[str, ...] = attrs.field(default=("#",), converter=_filters)
    shards: tuple[str, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(_filters))
    name: str = "default"
    value_as: ValueAs = attrs.field(validator=_one_of(*get_args(ValueAs)))
    fields: Mapping[str, str] = attrs.field(factory=dict)
    types: Mapping[str, str] = attrs.field(factory=dict)
    partition_by: tuple[str, ...] = attrs.field(default=("date", "topic"), converter=_parts)
    table: str = ""
    properties: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    fail_on_data_loss: bool = True

    @value_as.default
    def _default_value_as(self) -> ValueAs:
        return "binary" if self.format == "parquet" else "text"

    def __attrs_post_init__(self) -> None:
        if not self.path and not self.server:
            raise OptionError("an export needs a path (a data directory or a tree of sealed segments) or a server")
        if not _NAME.fullmatch(self.name):
            raise OptionError(
                f"the export's name is {self.name!r}, it must have from 1 to 64 letters, digits, '.' and '_'"
            )
        if _NUMBER_WITH_RUN.fullmatch(self.name):
            raise OptionError(
                f"the export's name is {self.name!r}, which readers take for a number when it is followed by that of a "
                "run: give it another name"
            )
        unknown = [one for one in self.partition_by if one not in get_args(PartitionBy)]
        if unknown or len(set(self.partition_by)) < len(self.partition_by):
            raise OptionError(
                f"partition_by is {', '.join(self.partition_by)!r}, it must be 'date', 'topic', both or nothing"
            )
        check_fields(self.fields, self.types, OWN_COLUMNS)
        is_database = self.target.startswith("jdbc:")
        if is_database is not (self.format == "jdbc"):
            raise OptionError(
                f"format {self.format!r} does not go with target {without_secrets(self.target)!r}: the format "
                "'jdbc' needs a JDBC URL as jdbc:postgresql://host/database, every other one a directory"
            )
        if is_database and not _TABLE.fullmatch(self.table):
            raise OptionError(
                f"table is {self.table!r}, it must be 'records' or 'schema.records' of letters, digits and '_'"
            )

    @property
    def origin(self) -> Origin:
        """What to read."""
        shards = self.topics if self.shards is None else self.shards
        return Origin(self.path, self.server, self.topics, shards, self.fail_on_data_loss)

    def settings(self) -> dict[str, object]:
        """Settings that must be the same in all runs, because the runs of an export are one table."""
        typed = {"value_as": "fields", "fields": dict(self.fields), "types": dict(self.types)} if self.fields else {}
        return {
            "format": self.format,
            "topics": list(self.topics),
            "shards": list(self.origin.shards),
            "value_as": self.value_as,
            "partition_by": [] if self.format == "jdbc" else list(self.partition_by),
            **typed,
        }
