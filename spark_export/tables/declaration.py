"""The declaration of a table: which topics it has rows of, its columns with sources and types, and where it is. Pure.

The table stores what its rows depend on. A later declaration may add columns and topics; any other difference is
refused, because the rows that are there would not be those of the new declaration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from broker_adapter.sinks.column_types import ColumnType
from shards.errors import InvalidNameError
from shards.topics.topic_filters import validate_filter
from spark_export.errors import OptionError
from spark_export.tables.errors import DeclarationChangedError
from spark_export.typed_fields import check_fields, types_of

OWN_COLUMNS: Final = ("date", "topic", "shard", "shard_id", "offset", "append_time", "problem", "bad_payload")
"""The columns that every table has, in front of its fields and behind them."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DAY_S: Final = 86_400
MAX_RECORDS: Final = 10_000_000


@attrs.frozen(kw_only=True)
class TableDeclaration:
    """One table.

    Attributes:
        name: Letters, digits, ``.``, ``_`` and ``-``.
        directory: Directory of the table, on this machine.
        topics: MQTT topic filters: records of topics that match one become rows.
        shards: MQTT topic filters of the shards to read; by default ``topics``.
        fields: Source by column, as in the ``fields`` of a bridge.
        types: Types of columns of ``fields``.
        interval_s: Seconds from one look for new records to the next.
        max_records: Most records of a batch, which is one commit of the table.
        fail_on_data_loss: Whether it is an error that records were removed before they were read, that a shard was
            deleted, or that the store was restored to an older state; otherwise it is logged and counted.
    """

    name: str
    directory: str
    topics: tuple[str, ...]
    fields: Mapping[str, str]
    shards: tuple[str, ...] = ()
    types: Mapping[str, str] = attrs.field(factory=dict)
    interval_s: float = 60.0
    max_records: int = 500_000
    fail_on_data_loss: bool = True

    def __attrs_post_init__(self) -> None:
        """Check it.

        Raises:
            OptionError: A setting is not valid; the message begins with its name.
        """
        if not _NAME.fullmatch(self.name):
            raise OptionError(f"name is {self.name!r}, it must have from 1 to 64 letters, digits, '.', '_' and '-'")
        if not self.directory or "://" in self.directory:
            raise OptionError(
                f"directory is {self.directory!r}, it must be a directory of this machine, because the files of a "
                "table are made durable before they count; copy them from there, or use `journal-spark stream`"
            )
        if not self.topics:
            raise OptionError("topics names no topic filter; '#' stands for all topics")
        for setting, filters in (("topics", self.topics), ("shards", self.shards)):
            for each in filters:
                try:
                    validate_filter(each)
                except InvalidNameError as error:
                    raise OptionError(f"{setting} has {each!r}, which is no topic filter: {error}") from error
        if not self.fields:
            raise OptionError('fields names no column; write it like { temperature = "$.temperature" }')
        check_fields(self.fields, self.types, OWN_COLUMNS)
        if len({column.lower() for column in self.fields}) < len(self.fields):
            raise OptionError(f"fields has columns that differ only in case: {', '.join(self.fields)}")
        if not 1 <= self.interval_s <= _DAY_S:
            raise OptionError(f"interval_s is {self.interval_s:g}, it must be from 1 to {_DAY_S} seconds")
        if not 1 <= self.max_records <= MAX_RECORDS:
            raise OptionError(f"max_records is {self.max_records}, it must be from 1 to {MAX_RECORDS}")

    @property
    def kinds(self) -> dict[str, ColumnType]:
        """Type by column of ``fields``."""
        return types_of(self.fields, self.types)

    @property
    def read_shards(self) -> tuple[str, ...]:
        """Filters of the shards to read."""
        return self.shards or self.topics

    def stored(self) -> dict[str, Any]:
        """What the rows depend on, as the table stores it."""
        return {
            "name": self.name,
            "topics": list(self.topics),
            "shards": list(self.shards),
            "fields": {column: [self.fields[column], str(kind)] for column, kind in self.kinds.items()},
        }


@attrs.frozen
class Evolution:
    """How a declaration differs from the stored one.

    Attributes:
        columns: Columns that were added.
        topics: Topic filters that were added.
    """

    columns: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.columns or self.topics)


def compare(declaration: TableDeclaration, stored: Mapping[str, Any]) -> Evolution:
    """Find what a declaration adds to the stored one.

    Args:
        declaration: The present one.
        stored: What `TableDeclaration.stored` returned for the one with which the rows were made.

    Raises:
        DeclarationChangedError: Something else was changed, removed or renamed.
    """
    now = declaration.stored()
    if stored["name"] != now["name"]:
        raise _changed(declaration, f"is that of the table {stored['name']!r}", "give each table a directory")
    before: Mapping[str, list[str]] = stored["fields"]
    for column, (source, kind) in before.items():
        if column not in now["fields"]:
            raise _changed(declaration, f"has a column {column!r}, which is not declared any more")
        found_source, found_kind = now["fields"][column]
        if found_kind != kind:
            raise _changed(declaration, f"has the column {column!r} as {kind}, now it is declared as {found_kind}")
        if found_source != source:
            raise _changed(declaration, f"has {column!r} from {source!r}, now it is declared from {found_source!r}")
    if removed := [each for each in stored["topics"] if each not in now["topics"]]:
        raise _changed(declaration, f"has rows of the topics {', '.join(removed)}, which are not declared any more")
    if stored["shards"] != now["shards"]:
        shown = [", ".join(each) or "those of topics" for each in (stored["shards"], now["shards"])]
        raise _changed(declaration, f"has rows of the shards {shown[0]}, now {shown[1]} are declared")
    return Evolution(
        tuple(column for column in now["fields"] if column not in before),
        tuple(each for each in now["topics"] if each not in stored["topics"]),
    )


def in_stored_order(declaration: TableDeclaration, stored: Mapping[str, Any]) -> TableDeclaration:
    """The declaration with its columns in the order of the table, in which added columns are the last ones."""
    order = {column: place for place, column in enumerate(stored["fields"])}
    fields = sorted(declaration.fields.items(), key=lambda field: order.get(field[0], len(order)))
    return attrs.evolve(declaration, fields=dict(fields))


def _changed(declaration: TableDeclaration, what: str, way_out: str = "") -> DeclarationChangedError:
    way_out = way_out or (
        "put the declaration back, give the new one another name and directory, or make the table again from the "
        f"records that are there, with --rebuild {declaration.name}"
    )
    return DeclarationChangedError(f"table {declaration.name}: {declaration.directory} {what}: {way_out}")
