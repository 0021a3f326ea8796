"""A connection to a database through Java, with its errors converted. `jdbc_target` has the statements."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from spark_export.errors import without_secrets
from spark_export.export.outcome import ExportError

_LOGGER: Final = logging.getLogger(__name__)

_NO_DRIVER: Final = ("No suitable driver", "ClassNotFoundException")
_NO_DRIVER_HINT: Final = (
    "; give Spark the driver's archive (--conf spark.jars=FILE or spark.jars.packages=NAME), and its class if the URL "
    "does not determine it (--property driver=CLASS)"
)
_Value = TypeVar("_Value")


class CommitUnansweredError(ExportError):
    """A COMMIT failed, or only its answer was lost."""


class JdbcConnection:
    """A connection of Java; each statement is a transaction, except inside `transaction`.

    Args:
        connection: A `java.sql.Connection`.
        shown: The database, for messages.
    """

    def __init__(self, connection: Any, shown: str) -> None:
        self._connection = connection
        self._shown = shown

    def close(self) -> None:
        """Close the connection; committed changes stay, whether closing succeeds or not."""
        try:
            guarded(self._shown, self._connection.close)
        except ExportError as error:
            _LOGGER.warning("a connection was not closed: %s", error)

    def execute(self, sql: str, *values: str | int) -> int:
        """Run a statement; return the number of affected rows."""
        return guarded(self._shown, lambda: self._execute(sql, values))

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
        return guarded(self._shown, lambda: self._query_text(sql, values))

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
        """Whether a table can be read. The table itself is queried, because databases list names differently."""
        from py4j.protocol import Py4JJavaError

        try:
            self._query_text(f"SELECT COUNT(*) FROM {table} WHERE 1 = 0", ())  # noqa: S608 - a checked name
        except Py4JJavaError:
            return False
        return True

    def tables(self, prefix: str) -> list[str]:
        """Names of tables that begin with a lower-case prefix, in the database's spelling."""
        return guarded(self._shown, lambda: self._tables(prefix))

    def _tables(self, prefix: str) -> list[str]:
        metadata = self._connection.getMetaData()
        pattern = f"{prefix.upper() if metadata.storesUpperCaseIdentifiers() else prefix}%"
        rows = metadata.getTables(self._connection.getCatalog(), None, pattern, None)
        names = []
        while rows.next():
            names.append(rows.getString("TABLE_NAME"))
        return names

    def create(self, sql: str, is_there: Callable[[], bool], *values: str) -> None:
        """Run a statement that another process may run at the same time; an error is ignored if its result exists."""
        try:
            self.execute(sql, *values)
        except ExportError:
            if not is_there():
                raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction as a context manager: all statements are committed together, or none if one fails.

        Raises:
            CommitUnansweredError: The COMMIT was sent, and its outcome is unknown.
        """
        guarded(self._shown, lambda: self._connection.setAutoCommit(False))
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        try:
            guarded(self._shown, self._connection.commit)
        except ExportError as error:
            self._roll_back()
            raise CommitUnansweredError(str(error)) from error
        guarded(self._shown, lambda: self._connection.setAutoCommit(True))

    def _roll_back(self) -> None:
        """Undo uncommitted statements; if the connection is lost, the database does it by itself."""
        try:
            guarded(self._shown, self._connection.rollback)
        except ExportError as error:
            _LOGGER.warning("a connection was lost in a transaction, the database rolls it back: %s", error)


def _bind(statement: Any, values: tuple[str | int, ...]) -> None:
    for position, value in enumerate(values, 1):
        if isinstance(value, int):
            statement.setLong(position, value)
        else:
            statement.setString(position, value)


def guarded(shown: str, call: Callable[[], _Value]) -> _Value:
    """Call Java, and convert its exceptions.

    Args:
        shown: The target of the call, for the message.
        call: The call.

    Raises:
        ExportError: Java raised an exception.
    """
    from py4j.protocol import Py4JJavaError

    try:
        return call()
    except Py4JJavaError as error:
        reason = without_secrets(error.java_exception.toString())
        hint = _NO_DRIVER_HINT if any(sign in reason for sign in _NO_DRIVER) else ""
        raise ExportError(f"{shown}: {reason}{hint}") from error
