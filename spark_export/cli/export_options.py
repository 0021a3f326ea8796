"""Options of the commands that write records to files or to a table of a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import attrs
from cyclopts import Parameter

from spark_export.cli.spark_options import named_values

if TYPE_CHECKING:
    from spark_export.export import ExportOptions
    from spark_export.options import SourceOptions

FileForm: TypeAlias = Literal["parquet", "csv", "json", "jdbc"]


@Parameter(name="*")
@attrs.frozen
class WriteOptions:
    """How records are written.

    Attributes:
        value_as: How keys and values are written; binary for parquet, text for the others by default.
        partition_by: Directories below that of a run: date, topic, both separated by a comma, or empty.
        table: Table of the database; created if it does not exist.
        properties: A property of the database connection, as NAME=VALUE; may be given several times.
    """

    value_as: Literal["text", "binary", "json"] | None = None
    partition_by: str = "date,topic"
    table: str = ""
    properties: Annotated[tuple[str, ...], Parameter(name="--property", negative="")] = ()

    def connection(self) -> dict[str, str]:
        """The properties of the database connection.

        Raises:
            UsageError: One of them is not NAME=VALUE.
        """
        return named_values("--property", self.properties, example="user=writer")

    def export_options(
        self, target: str, form: FileForm | None, source: SourceOptions, *, name: str, **more: Any
    ) -> ExportOptions:
        """The options of an export or a drain.

        Args:
            target: Directory or JDBC URL.
            form: Format; None for that of the target.
            source: Where the records are.
            name: Of the runs.
            more: Other options, by name.

        Raises:
            OptionError: An option is wrong.
        """
        from spark_export.export import ExportOptions

        if self.value_as is not None:
            more["value_as"] = self.value_as
        return ExportOptions(
            target=target,
            format=form or ("jdbc" if target.startswith("jdbc:") else "parquet"),
            path=source.path,
            server=source.server,
            name=name,
            partition_by=parts_of(self.partition_by),
            table=self.table,
            properties=self.connection(),
            **more,
        )


WRITE_DEFAULT: Final = WriteOptions()


def parts_of(partition_by: str) -> Sequence[Any]:
    """The parts of ``--partition-by``; what they may be is checked with the other options."""
    return [each.strip() for each in partition_by.split(",") if each.strip()]
