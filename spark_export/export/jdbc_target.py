"""Exports to a table of a database.

Spark's tasks write a run to a table of its own, each in a transaction of its own. Then one transaction adds all of it
to the table for readers, and moves the export's state from the run before to this one. So rows and state match, and of
two runs with the same number the second finds that the state has moved, and adds nothing.

A task may be repeated although its transaction was committed: the answer to the COMMIT was lost, its executor was lost
after it, or Spark ran it twice on purpose (``spark.speculation``). So each row of the run's table has the number of the
attempt that wrote it. Spark reports which attempts succeeded, one for each task, and with how many rows: only these
rows are added, and if the table does not have exactly as many, none are.

Names in statements are checked by `ExportOptions` or generated here; everything else is a parameter.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from spark_export.errors import without_secrets
from spark_export.export.jdbc_connection import CommitUnansweredError, JdbcConnection, guarded
from spark_export.export.options import ExportOptions
from spark_export.export.outcome import ExportConflictError, ExportError
from spark_export.export.state import BEFORE_FIRST, ExportState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE_TABLE: Final = "journal_exports"
"""In the schema of the exported table: for each export, the number of its last run and the state after it."""

_ATTEMPT: Final = "journal_attempt"
"""In the table of a run: the task attempt that wrote the row. Spark uses each attempt number once."""
_ATTEMPTS_AT_ONCE: Final = 500
_DRIVERS: Final = {
    "db2": "com.ibm.db2.jcc.DB2Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "oracle": "oracle.jdbc.OracleDriver",
    "postgresql": "org.postgresql.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
}
"""Driver classes by the name after ``jdbc:``, for databases with a single driver."""
"""Some databases accept at most a thousand values in a list."""

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
        # Lower case, so that another spelling of the table's name is the same export.
        self._key = f"{table.lower()}/{options.name}"
        self._prefix = f"journal_run_{hashlib.sha256(self._key.encode()).hexdigest()[:8]}_"
        self._written = ""
        self._columns: tuple[str, ...] = ()
        self._attempts: tuple[int, ...] = ()
        self._record_count = 0
        self._dialect: Any = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options.target)

    @property
    def shown(self) -> str:
        """The table, for messages; without passwords."""
        return f"table {self._options.table} of {_WITHOUT_PARAMETERS.sub('', without_secrets(self._options.target))}"

    def last_state(self) -> ExportState:
        """The state after the last published run; creates the state table if it does not exist."""
        with self._connection() as connection:
            self._ensure_state_table(connection)
            found = connection.query_text(
                f"SELECT run_state FROM {self._schema}{STATE_TABLE} WHERE export_name = ?", self._key
            )
        return BEFORE_FIRST if not found else ExportState.decode(found, f"{STATE_TABLE} of {self.shown}")

    def write(self, rows: DataFrame, run: int) -> int:
        """Write the rows of a run to a table of its own."""
        from pyspark.sql import Observation, functions

        self._columns = tuple(rows.columns)
        with self._connection() as connection:
            if not connection.has_table(self._options.table):
                self._save(self._spark.createDataFrame([], rows.schema), self._options.table, "append")
        self._written = f"{self._schema}{self._prefix}{run}_{secrets.token_hex(4)}"
        attempt = functions.udf(_attempt_of, "long", useArrow=False).asNondeterministic()
        # Counted by the observation that each task reports at its end: attempts that failed, or that ended after
        # another attempt of the task, are not counted.
        written = Observation()
        self._save(
            rows.withColumn(_ATTEMPT, attempt(functions.spark_partition_id())).observe(
                written,
                functions.collect_set(_ATTEMPT).alias("attempts"),
                functions.count(functions.lit(1)).alias("records"),
            ),
            self._written,
            "error",
        )
        found = written.get
        self._attempts, self._record_count = tuple(sorted(found["attempts"])), int(found["records"])
        return self._record_count

    def publish(self, state: ExportState) -> None:
        """Add the rows and store the new state, in one transaction."""
        try:
            self._publish(state)
        except CommitUnansweredError as error:
            if self.last_state() != state:
                raise ExportError(
                    f"{self.shown}: the answer to the COMMIT of run {state.run} of export {self._options.name!r} was "
                    f"lost, and the run is not there (yet): {error}; run it again: the next run continues after it if "
                    "it exists then"
                ) from error
        self._written = ""

    def _publish(self, state: ExportState) -> None:
        columns = ", ".join(self._dialect.quoteIdentifier(column) for column in self._columns)
        with self._connection() as connection, connection.transaction():
            moved = connection.execute(
                f"UPDATE {self._schema}{STATE_TABLE} SET run_number = ?, run_state = ? "
                "WHERE export_name = ? AND run_number = ?",
                *(state.run, state.encode(), self._key, state.run - 1),
            )
            if not moved:
                raise self.conflict(state.run)
            added = 0
            for attempts in _chunks(self._attempts, _ATTEMPTS_AT_ONCE):
                added += connection.execute(
                    f"INSERT INTO {self._options.table} ({columns}) SELECT {columns} FROM {self._written} "
                    f"WHERE {self._dialect.quoteIdentifier(_ATTEMPT)} IN ({', '.join('?' * len(attempts))})",
                    *attempts,
                )
            if added != self._record_count:
                raise ExportError(
                    f"{self.shown}: the tasks of run {state.run} of export {self._options.name!r} wrote "
                    f"{self._record_count} rows to {self._written}, but it holds {added} of theirs: nothing was "
                    "added; check whether others write there, then run it again"
                )

    def conflict(self, run: int) -> ExportConflictError:
        """The error for a run that another process published first."""
        return ExportConflictError(
            f"run {run} of export {self._options.name!r} to {self.shown} was published by another process while this "
            "one was writing it: nothing of this one was added; run it again for what is new since then"
        )

    def abandon(self) -> None:
        """Remove the unpublished rows of this run."""
        if self._written:
            with self._connection() as connection:
                if connection.has_table(self._written):
                    connection.execute(f"DROP TABLE {self._written}")

    def clean(self, run: int) -> None:
        """Remove the unpublished rows of runs up to this number."""
        left_aside = re.compile(rf"{self._prefix}([0-9]+)_[0-9a-f]+")
        with self._connection() as connection:
            for name in connection.tables(self._prefix):
                found = left_aside.fullmatch(name.lower())
                # Another schema may have a table of the same name.
                if found and int(found[1]) <= run and connection.has_table(f"{self._schema}{name}"):
                    connection.execute(f"DROP TABLE {self._schema}{name}")

    def _ensure_state_table(self, connection: JdbcConnection) -> None:
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

    @property
    def _properties(self) -> dict[str, str]:
        """The properties, with the driver's class: without it Java finds only the drivers in its class path."""
        return {**driver_of(self._options.target), **self._options.properties}

    def _save(self, rows: DataFrame, table: str, mode: str) -> None:
        options = {**self._properties, "url": self._options.target, "dbtable": table}
        rows.write.format("jdbc").options(**options).mode(mode).save()

    @contextmanager
    def _connection(self) -> Iterator[JdbcConnection]:
        settings = self._jvm.PythonUtils.toScalaMap(self._properties)
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc

        def connect() -> Any:
            options = jdbc.JDBCOptions(self._options.target, STATE_TABLE, settings)
            return self._dialect.createConnectionFactory(options).apply(-1)

        connection = guarded(self.shown, connect)
        found = JdbcConnection(connection, self.shown)
        try:
            yield found
        finally:
            found.close()


def driver_of(url: str) -> dict[str, str]:
    """The property that names the driver's class; empty for a database that is unknown here."""
    name = url.removeprefix("jdbc:").partition(":")[0].lower()
    return {"driver": _DRIVERS[name]} if name in _DRIVERS else {}


def _attempt_of(_partition: int) -> int:
    """The number of the task attempt in which this is called."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None  # Spark calls this only in tasks
    return context.taskAttemptId()


def _chunks(values: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(values), size):
        yield values[first : first + size]
