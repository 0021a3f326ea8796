"""Exports to a table of a database.

Spark's tasks write a run to a table of its own, each in a transaction of its own. Then one transaction adds all of it
to the table that people read and moves the export's state from the run before to this one. So rows and state agree, and
of two runs with the same number the second finds the state moved and adds nothing.

Names in statements are checked by `ExportOptions` or made here; everything else is a parameter.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_export.export.options import ExportOptions
from spark_export.export.outcome import ExportConflictError, ExportError
from spark_export.export.state import BEFORE_FIRST, ExportState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Value = TypeVar("_Value")

STATE_TABLE: Final = "journal_exports"
"""In the schema of the exported table: for each export the number of its last run and the state after it."""

_WITHOUT_PARAMETERS = re.compile(r"[?;].*", re.DOTALL)


class JdbcTarget:
    """A table of a database.

    Args:
        spark: The session that writes; its Java has the driver.
        options: The export.

    Raises:
        ExportError: The database cannot be reached, or refuses.
    """

    def __init__(self, spark: SparkSession, options: ExportOptions) -> None:
        self._spark = spark
        self._options = options
        jvm: Any = spark._jvm  # noqa: SLF001 - the driver, and with it the transaction, is in Java
        self._jvm = jvm
        schema, _, table = options.table.rpartition(".")
        self._schema = f"{schema}." if schema else ""
        # Written as one word in the database whatever its case is, as an export of this table alone.
        self._key = f"{table.lower()}/{options.name}"
        self._prefix = f"journal_run_{hashlib.sha256(self._key.encode()).hexdigest()[:8]}_"
        self._written = ""
        self._columns: tuple[str, ...] = ()
        self._dialect: Any = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options.target)

    @property
    def shown(self) -> str:
        """Where it is, for people; without passwords."""
        return f"table {self._options.table} of {_WITHOUT_PARAMETERS.sub('', self._options.target)}"

    def last_state(self) -> ExportState:
        """What the last run that was published left; makes the table for it if there is none."""
        with self._connection() as connection:
            self._ensure_state_table(connection)
            found = connection.query_text(
                f"SELECT run_state FROM {self._schema}{STATE_TABLE} WHERE export_name = ?", self._key
            )
        return BEFORE_FIRST if not found else ExportState.decode(found, f"{STATE_TABLE} of {self.shown}")

    def write(self, rows: DataFrame, run: int) -> None:
        """Write the rows of a run to a table of its own."""
        self._columns = tuple(rows.columns)
        with self._connection() as connection:
            if not connection.has_table(self._options.table):
                self._save(self._spark.createDataFrame([], rows.schema), self._options.table, "append")
        self._written = f"{self._schema}{self._prefix}{run}_{secrets.token_hex(4)}"
        self._save(rows, self._written, "error")

    def publish(self, state: ExportState) -> None:
        """Add the rows and move the state, in one transaction."""
        columns = ", ".join(self._dialect.quoteIdentifier(column) for column in self._columns)
        with self._connection() as connection:
            with connection.transaction():
                moved = connection.execute(
                    f"UPDATE {self._schema}{STATE_TABLE} SET run_number = ?, run_state = ? "
                    "WHERE export_name = ? AND run_number = ?",
                    *(state.run, state.encode(), self._key, state.run - 1),
                )
                if not moved:
                    raise self.conflict(state.run)
                connection.execute(
                    f"INSERT INTO {self._options.table} ({columns}) SELECT {columns} FROM {self._written}"
                )
            connection.execute(f"DROP TABLE {self._written}")
        self._written = ""

    def conflict(self, run: int) -> ExportConflictError:
        """What to raise when another process published the run first."""
        return ExportConflictError(
            f"run {run} of export {self._options.name!r} to {self.shown} was published by another process while this "
            "one was writing it: nothing of this one was added; run it again for what is new since then"
        )

    def abandon(self) -> None:
        """Remove what this run wrote aside."""
        if self._written:
            with self._connection() as connection:
                if connection.has_table(self._written):
                    connection.execute(f"DROP TABLE {self._written}")

    def clean(self, run: int) -> None:
        """Remove what runs up to this one left aside when they were killed."""
        left_aside = re.compile(rf"{self._prefix}([0-9]+)_[0-9a-f]+")
        with self._connection() as connection:
            for name in connection.tables(self._prefix):
                found = left_aside.fullmatch(name.lower())
                if found and int(found[1]) <= run:
                    connection.execute(f"DROP TABLE {self._schema}{name}")

    def _ensure_state_table(self, connection: _Connection) -> None:
        table = f"{self._schema}{STATE_TABLE}"
        if not connection.has_table(table):
            found = self._dialect.getJDBCType(self._jvm.org.apache.spark.sql.types.DataTypes.StringType)
            text = found.get().databaseTypeDefinition() if found.isDefined() else "TEXT"
            connection.create(
                f"CREATE TABLE {table} (export_name VARCHAR(255) NOT NULL PRIMARY KEY, run_number BIGINT NOT NULL, "
                f"run_state {text})",
                lambda: connection.has_table(table),
            )
        there = f"SELECT COUNT(*) FROM {table} WHERE export_name = ?"
        if connection.query_text(there, self._key) == "0":
            connection.create(
                f"INSERT INTO {table} (export_name, run_number) VALUES (?, 0)",
                lambda: connection.query_text(there, self._key) == "1",
                self._key,
            )

    def _save(self, rows: DataFrame, table: str, mode: str) -> None:
        options = {**self._options.properties, "url": self._options.target, "dbtable": table}
        rows.write.format("jdbc").options(**options).mode(mode).save()

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        settings = self._jvm.PythonUtils.toScalaMap(dict(self._options.properties))
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc

        def connect() -> Any:
            options = jdbc.JDBCOptions(self._options.target, STATE_TABLE, settings)
            return self._dialect.createConnectionFactory(options).apply(-1)

        connection = _guarded(self.shown, connect)
        try:
            yield _Connection(connection, self.shown)
        finally:
            _guarded(self.shown, connection.close)


class _Connection:
    """A connection of Java's; each statement is a transaction unless it is in one.

    Args:
        connection: A `java.sql.Connection`.
        shown: What it leads to, for messages.
    """

    def __init__(self, connection: Any, shown: str) -> None:
        self._connection = connection
        self._shown = shown

    def execute(self, sql: str, *values: str | int) -> int:
        """Run a statement; return how many rows it touched."""
        return _guarded(self._shown, lambda: self._execute(sql, values))

    def _execute(self, sql: str, values: tuple[str | int, ...]) -> int:
        statement = self._connection.prepareStatement(sql)
        try:
            _bind(statement, values)
            count: int = statement.executeUpdate()
            return count
        finally:
            statement.close()

    def query_text(self, sql: str, *values: str | int) -> str | None:
        """The first column of the first row, as text."""
        return _guarded(self._shown, lambda: self._query_text(sql, values))

    def _query_text(self, sql: str, values: tuple[str | int, ...]) -> str | None:
        statement = self._connection.prepareStatement(sql)
        try:
            _bind(statement, values)
            rows = statement.executeQuery()
            text: str | None = rows.getString(1) if rows.next() else None
            return text
        finally:
            statement.close()

    def has_table(self, table: str) -> bool:
        """Whether a table can be read. Asked of the table itself: databases differ in how they list names."""
        from py4j.protocol import Py4JJavaError

        try:
            self._query_text(f"SELECT COUNT(*) FROM {table} WHERE 1 = 0", ())
        except Py4JJavaError:
            return False
        return True

    def tables(self, prefix: str) -> list[str]:
        """Names of tables that begin with a lower-case prefix, as the database writes them."""
        return _guarded(self._shown, lambda: self._tables(prefix))

    def _tables(self, prefix: str) -> list[str]:
        metadata = self._connection.getMetaData()
        pattern = f"{prefix.upper() if metadata.storesUpperCaseIdentifiers() else prefix}%"
        rows = metadata.getTables(self._connection.getCatalog(), None, pattern, None)
        names = []
        while rows.next():
            names.append(rows.getString("TABLE_NAME"))
        return names

    def create(self, sql: str, is_there: Callable[[], bool], *values: str) -> None:
        """Run a statement that another process may be running too; all is well if what it makes is there then."""
        try:
            self.execute(sql, *values)
        except ExportError:
            if not is_there():
                raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements together, or none if one fails."""
        _guarded(self._shown, lambda: self._connection.setAutoCommit(False))
        try:
            yield
            _guarded(self._shown, self._connection.commit)
        except BaseException:
            _guarded(self._shown, self._connection.rollback)
            raise
        finally:
            _guarded(self._shown, lambda: self._connection.setAutoCommit(True))


def _bind(statement: Any, values: tuple[str | int, ...]) -> None:
    for position, value in enumerate(values, 1):
        if isinstance(value, int):
            statement.setLong(position, value)
        else:
            statement.setString(position, value)


def _guarded(shown: str, call: Callable[[], _Value]) -> _Value:
    from py4j.protocol import Py4JJavaError

    try:
        return call()
    except Py4JJavaError as error:
        raise ExportError(f"{shown}: {error.java_exception.toString()}") from error
