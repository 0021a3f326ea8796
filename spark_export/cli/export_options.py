"""Options of the commands that write records to files or to a table of a database."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import attrs
from cyclopts import Parameter

from command_line.boundary import CommandError, UsageError
from spark_export.cli.spark_options import named_values
from spark_export.errors import is_secret, without_secrets

if TYPE_CHECKING:
    from spark_export.export import ExportOptions
    from spark_export.options import SourceOptions

PASSWORD_VARIABLE: Final = "JOURNAL_JDBC_PASSWORD"  # noqa: S105 the name of a variable
_SECRET_WAY_OUT: Final = f"give --property-file password=FILE, or the password in {PASSWORD_VARIABLE}"

FileForm: TypeAlias = Literal["parquet", "csv", "json", "jdbc"]


@Parameter(name="*")
@attrs.frozen
class WriteOptions:
    """How records are written.

    Attributes:
        value_as: How keys and values are written; binary for parquet, text for the others by default.
        fields: Typed columns in place of records, with their sources as in the `fields` of a bridge, in TOML, like
            'line = "topic[1]", temperature = "$.temperature"'.
        types: Types of these columns, like 'temperature = "float"': text, json, int, float, bool, timestamp, binary.
        partition_by: Directories below that of a run: date, topic, both separated by a comma, or empty.
        table: Table of the database; created if it does not exist.
        properties: A property of the database connection, as NAME=VALUE; may be given several times.
        property_files: The same as NAME=FILE, with the value in the first line of the file; for passwords.
    """

    value_as: Literal["text", "binary", "json"] | None = None
    fields: str = ""
    types: str = ""
    partition_by: str = "date,topic"
    table: str = ""
    properties: Annotated[tuple[str, ...], Parameter(name="--property", negative="")] = ()
    property_files: Annotated[tuple[str, ...], Parameter(name="--property-file", negative="")] = ()

    def connection(self, target: str) -> dict[str, str]:
        """The properties of the database connection; see `connection_properties`."""
        return connection_properties(self.properties, self.property_files, target)

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
        more["fields"] = table_of("--fields", self.fields)
        more["types"] = table_of("--types", self.types)
        return ExportOptions(
            target=target,
            format=form or ("jdbc" if target.startswith("jdbc:") else "parquet"),
            path=source.path,
            server=source.server,
            name=name,
            partition_by=parts_of(self.partition_by),
            table=self.table,
            properties=self.connection(target),
            **more,
        )


WRITE_DEFAULT: Final = WriteOptions()


def parts_of(partition_by: str) -> Sequence[Any]:
    """The parts of ``--partition-by``; what they may be is checked with the other options."""
    return [each.strip() for each in partition_by.split(",") if each.strip()]


def table_of(option: str, given: str) -> dict[str, str]:
    """The texts of an inline table of TOML, with or without its braces.

    Raises:
        UsageError: It is none, or has a value that is not text.
    """
    import tomllib

    inner = given.strip()
    inner = inner if inner.startswith("{") else f"{{ {inner} }}"
    try:
        found = tomllib.loads(f"table = {inner}")
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{option} {given!r} is no table of TOML, like 'line = \"topic[1]\"': {error}") from error
    table = found.pop("table")
    if found or not all(isinstance(value, str) for value in table.values()):
        raise UsageError(f"{option} {given!r} must have texts alone, like 'line = \"topic[1]\"'")
    return dict(table)


def connection_properties(given: Sequence[str], files: Sequence[str], target: str) -> dict[str, str]:
    """Properties of the connection to a database, from the command line, files and the environment.

    Args:
        given: Values of ``--property``.
        files: Values of ``--property-file``.
        target: The target of the command.

    Raises:
        UsageError: One of them is not NAME=VALUE or NAME=FILE, or has a secret that other users could see.
        CommandError: A file cannot be read.
    """
    values = named_values("--property", given, example="user=loader")
    if shown := next(filter(is_secret, values), None):
        raise UsageError(f"--property {shown}=... is visible to all users of this machine; {_SECRET_WAY_OUT}")
    if target.startswith("jdbc:") and without_secrets(target) != target:
        raise UsageError(f"the password in {without_secrets(target)} is visible to all users; {_SECRET_WAY_OUT}")
    for name, path in named_values("--property-file", files, example="password=/etc/loader.password").items():
        try:
            with open(path, encoding="utf-8") as file:
                values[name] = file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise CommandError(f"--property-file {name}={path} cannot be read: {reason}") from error
    if target.startswith("jdbc:") and (password := os.environ.get(PASSWORD_VARIABLE)):
        values.setdefault("password", password)
    return values
