"""A log store in PostgreSQL: one table, in which the insert of a key decides. By psycopg.

An object is durable when its insert has returned, with ``synchronous_commit`` at least ``on``. That it outlives the
server's machine needs a synchronous standby (``synchronous_standby_names``): after a failover to an asynchronous one,
acknowledged objects are missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import attrs
import psycopg
from psycopg import Connection, errors

from journal.logstore.errors import (
    ForeignStoreError,
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
    UnknownOutcomeError,
)
from journal.logstore.keys import check_key, folder_of
from journal.logstore.store import Created

_T = TypeVar("_T")

TIMEOUT_S: Final = 10.0
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS journal_log (key text COLLATE "C" PRIMARY KEY, data bytea NOT NULL);
ALTER TABLE journal_log ALTER COLUMN data SET STORAGE EXTERNAL;
"""
_EXISTS: Final = "SELECT to_regclass('journal_log') IS NOT NULL"
_CREATE: Final = "INSERT INTO journal_log (key, data) VALUES (%s, %s) ON CONFLICT (key) DO NOTHING"
_GET: Final = "SELECT data FROM journal_log WHERE key = %s"
_LIST: Final = "SELECT key FROM journal_log WHERE key > %s AND key < %s"
_DELETE: Final = "DELETE FROM journal_log WHERE key = %s"

_CREDENTIALS: Final = (errors.InsufficientPrivilege, errors.InvalidAuthorizationSpecification, errors.InvalidPassword)
_FOREIGN: Final = (
    errors.UndefinedColumn,
    errors.UndefinedTable,
    errors.DatatypeMismatch,
    errors.InvalidColumnReference,
)
_FULL: Final = (errors.DiskFull,)
_REFUSED_LOGINS: Final = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects",
    "is not permitted to log in",
    "permission denied for database",
)
_NO_SPACE: Final = "No space left on device"


@attrs.frozen(slots=True)
class _Line:
    """A connection, where it leads, and the warnings that came with the answers of its server."""

    connection: Connection[tuple[Any, ...]]
    place: str
    warnings: list[str] = attrs.field(factory=list)

    def note(self, notice: errors.Diagnostic) -> None:
        """Keep a warning. One comes with a commit that was cancelled while it waited for a synchronous standby."""
        if notice.severity_nonlocalized == "WARNING":
            self.warnings.append(notice.message_primary or "a warning without a text")


class PostgresqlLogStore:
    """Objects are rows of the table ``journal_log``, which may hold several stores. The first create makes it.

    The server ends a statement that takes too long, and a machine that is gone is noticed. A server process that is
    stopped while its machine answers is waited for.

    Args:
        conninfo: Where the database is and how to log in, as libpq takes it.
        timeout_s: How long one request may take, in seconds.
    """

    def __init__(self, conninfo: str, timeout_s: float = TIMEOUT_S) -> None:
        self._conninfo = conninfo
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        # As many as threads ever used the store at a time.
        self._idle: list[_Line] = []
        self._making = threading.Lock()
        # That there is the table, or was: without it all objects are gone.
        self._is_table_known = False

    def create(self, key: str, data: bytes) -> Created:
        check_key(key)

        def insert(line: Connection[tuple[Any, ...]]) -> int:
            self._ensure_table(line)
            return line.execute(_CREATE, (key, data), binary=True).rowcount

        return Created.OURS if self._run("create", key, insert) else Created.EXISTS

    def get(self, key: str) -> bytes | None:
        check_key(key)
        row = self._run("get", key, lambda line: line.execute(_GET, (key,), binary=True).fetchone(), lambda: None)
        return None if row is None else bytes(row[0])

    def list_after(self, key: str) -> list[str]:
        folder = folder_of(key)
        # "0" follows "/": this is after every key of the folder.
        end = f"{folder[:-1]}0"
        rows = self._run("list", key, lambda line: line.execute(_LIST, (key, end)).fetchall(), list[tuple[Any, ...]])
        return [name for (name,) in rows if folder_of(name) == folder]

    def delete(self, key: str) -> None:
        check_key(key)
        self._run("delete", key, lambda line: line.execute(_DELETE, (key,)).rowcount, lambda: 0)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.connection.close()

    def _run(
        self,
        what: str,
        key: str,
        request: Callable[[Connection[tuple[Any, ...]]], _T],
        without_table: Callable[[], _T] | None = None,
    ) -> _T:
        """Carry a request out.

        Args:
            what: What it is, for errors.
            key: Of this object.
            request: It.
            without_table: Returns the answer of a database in which nothing was stored yet; None if there is none.
        """
        with self._line() as line:
            try:
                answer = request(line.connection)
                self._is_table_known = True
            except psycopg.Error as error:
                if isinstance(error, errors.UndefinedTable) and without_table and not self._is_table_known:
                    return without_table()
                raise _error_of(error)(f"{what} of {key}: {line.place}: {_message(error)}") from error
            if line.warnings:
                raise UnknownOutcomeError(
                    f"{what} of {key}: {line.place} answered with a warning: {'; '.join(line.warnings)}"
                )
            return answer

    @contextmanager
    def _line(self) -> Iterator[_Line]:
        """A connection that no other thread uses; one that failed is closed."""
        with self._lock:
            line = self._idle.pop() if self._idle else None
        if line is None:
            connection = self._connect()
            line = _Line(connection, _place(connection))
            line.connection.add_notice_handler(line.note)
        try:
            yield line
        except BaseException:
            line.connection.close()
            raise
        with self._lock:
            self._idle.append(line)

    def _connect(self) -> Connection[tuple[Any, ...]]:
        milliseconds = int(self._timeout_s * 1000)
        line: Connection[tuple[Any, ...]] | None = None
        try:
            line = psycopg.connect(
                self._conninfo,
                autocommit=True,
                connect_timeout=max(2, int(self._timeout_s)),
                # A server whose machine is gone is noticed while its answer is awaited, too.
                tcp_user_timeout=milliseconds,
                keepalives_idle=max(1, int(self._timeout_s / 2)),
                keepalives_interval=1,
                keepalives_count=max(1, int(self._timeout_s / 2)),
                prepare_threshold=None,
            )
            line.execute(f"SET statement_timeout = {milliseconds}")
            # A role or a database may have it off, and then an acknowledged object would not survive a crash.
            (level,) = line.execute("SHOW synchronous_commit").fetchone() or ("off",)
            if level in {"off", "local"}:
                line.execute("SET synchronous_commit = on")
        except psycopg.OperationalError as error:
            if line is not None:
                line.close()
            kind = _error_of(error) if error.sqlstate is not None else _unconnected(error)
            raise kind(f"connection: {_message(error)}") from error
        except psycopg.Error as error:
            if line is not None:
                line.close()
            raise _error_of(error)(f"connection: {_message(error)}") from error
        return line

    def _ensure_table(self, line: Connection[tuple[Any, ...]]) -> None:
        with self._making:
            if self._is_table_known:
                return
            (exists,) = line.execute(_EXISTS).fetchone() or (False,)
            if not exists:
                # Of two processes at the same time, one gets an error.
                with suppress(errors.UniqueViolation, errors.DuplicateTable):
                    line.execute(_TABLE)
            self._is_table_known = True


def _place(connection: Connection[tuple[Any, ...]]) -> str:
    info = connection.info
    return f"database {info.dbname} at {info.host}:{info.port}"


def _unconnected(error: psycopg.OperationalError) -> type[LogStoreError]:
    """What a failed connection means. libpq does not give a SQLSTATE for it, only a text."""
    text = str(error)
    if any(sign in text for sign in _REFUSED_LOGINS) or ('role "' in text and "does not exist" in text):
        return StoreCredentialsError
    if _NO_SPACE in text:
        return StoreFullError
    return StoreUnreachableError


def _error_of(error: psycopg.Error) -> type[LogStoreError]:
    if isinstance(error, _CREDENTIALS):
        return StoreCredentialsError
    if isinstance(error, _FULL):
        return StoreFullError
    if isinstance(error, _FOREIGN):
        return ForeignStoreError
    return UnknownOutcomeError


def _message(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
