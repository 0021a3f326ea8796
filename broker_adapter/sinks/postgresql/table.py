"""Database commands of a sink, each function one exchange in a thread: the table, the positions, one batch.

Positions are in a table of their own, in the schema of the table for the rows. A batch is one transaction: rows by
COPY, then the position is advanced under the lock of its row, if the epoch is still the driver's. So the lock is held
only at the end of a batch, and a driver that vanished in the middle of a batch blocks no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import attrs
import psycopg
from psycopg import Connection, sql

Database = Connection[tuple[Any, ...]]

POSITIONS: Final = "journal_bridge_positions"
"""Table of positions, in the schema of the table for the rows."""

# CREATE TABLE IF NOT EXISTS in several sessions at once: which of these the losers get depends on where they meet: in
# an index of the catalog (unique_violation), at the table's name (duplicate_table) or at the name of its row type
# (duplicate_object).
_LOST_RACES: Final = ("23505", "42P07", "42710")
_NO_RIGHT: Final = "42501"
# Columns that bridges project by default; other columns are the user's own, and text accepts any value.
USUAL_TYPES: Final = {
    "qos": "smallint",
    "timestamp": "timestamptz",
    "payload": "bytea",
    "offset": "bigint",
    "headers": "jsonb",
}


class UnfitError(Exception):
    """The database cannot store rows until an operator changes something; the message says what."""


@attrs.frozen(slots=True)
class Table:
    """The table for the rows, as found in the database.

    Attributes:
        schema: Schema of the table.
        name: Its name in the schema.
        types: Type names of its columns; for a domain, of its base type.
        begin: Statement that begins a transaction on it.
    """

    schema: str
    name: str
    types: dict[str, str]
    begin: sql.SQL

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def positions(self) -> sql.Identifier:
        return sql.Identifier(self.schema, POSITIONS)


@attrs.frozen(slots=True)
class Standing:
    """The row of a queue in the table of positions.

    Attributes:
        epoch: Epoch of the last driver that took over; None if no driver ever did.
        position: Offset up to which everything is stored; None if nothing is.
    """

    epoch: int | None
    position: int | None


def find_table(database: Database, name: str, columns: Sequence[str], timeout_s: int) -> Table:
    """Look up the table, and check that rows with these columns can be added.

    Raises:
        UnfitError: They cannot be added.
    """
    quoted = ".".join(f'"{part}"' for part in name.split("."))
    found = database.execute(
        "SELECT c.oid, n.nspname, c.relname, has_any_column_privilege(c.oid, 'INSERT'), current_user,"
        " current_setting('transaction_read_only'), current_setting('synchronous_commit')"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s::text)",
        [quoted],
    ).fetchone()
    if found is None:
        wanted = ", ".join(f'"{column}" {USUAL_TYPES.get(column, "text")}' for column in columns)
        raise UnfitError(
            f"there is no table {name} that this user may see; create it, for example: CREATE TABLE {quoted} ({wanted})"
        )
    oid, schema, relation, may_insert, user, read_only, synchronous_commit = found
    if read_only == "on":
        raise UnfitError(
            "the server accepts no changes (it is a standby, or default_transaction_read_only is on); give the "
            "primary's address, or several and target_session_attrs=read-write"
        )
    if not may_insert:
        raise UnfitError(f'{user} may not insert into the table {name}: GRANT INSERT ON {quoted} TO "{user}"')
    attributes = database.execute(
        "SELECT a.attname, coalesce(b.typname, t.typname),"
        " a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a'"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        [oid],
    ).fetchall()
    types = {column: type_name for column, type_name, _, _ in attributes}
    if missing := [column for column in columns if column not in types]:
        raise UnfitError(
            f"the table {name} has no column {', '.join(missing)} (it has {', '.join(types)}); add it with ALTER TABLE "
            "or have the bridge project other columns"
        )
    for column, _, is_wanted, is_made in attributes:
        if is_wanted and column not in columns:
            raise UnfitError(
                f"the column {column} of the table {name} must not be NULL and has no default, but the bridge projects "
                f"no such column ({', '.join(columns)}); project it, or give it a default"
            )
        if is_made and column in columns:
            raise UnfitError(
                f"the column {column} of the table {name} is generated by the server; have the bridge not project it"
            )
    return Table(schema, relation, types, _begin(synchronous_commit, timeout_s))


def _begin(synchronous_commit: str, timeout_s: int) -> sql.SQL:
    # A session that stops between two statements must not hold the position's lock. All settings are local to the
    # transaction, so that it works through connection poolers.
    statement = f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '{timeout_s}s'"
    if synchronous_commit == "off":
        # Rows that the server may still lose must not be confirmed.
        statement += "; SET LOCAL synchronous_commit = on"
    return sql.SQL(statement)


def ensure_positions(database: Database, table: Table) -> None:
    """Create the table of positions if it does not exist.

    Raises:
        UnfitError: The user may not create it.
    """
    name = table.positions.as_string(database)
    if _exists(database, name):
        return
    statement = sql.SQL(
        "CREATE TABLE IF NOT EXISTS {} (queue_id text PRIMARY KEY, position bigint, epoch bigint NOT NULL,"
        " bridge text NOT NULL, written_at timestamptz NOT NULL DEFAULT now())"
    ).format(table.positions)
    try:
        database.execute(statement)
    except psycopg.Error as error:
        if error.sqlstate in _LOST_RACES and _exists(database, name):
            return  # another bridge has just created it
        if error.sqlstate != _NO_RIGHT:
            raise
        raise UnfitError(
            f"the table of positions cannot be created ({error.diag.message_primary}); GRANT CREATE ON SCHEMA "
            f"{sql.Identifier(table.schema).as_string(database)}, or create it and GRANT SELECT, INSERT, UPDATE on it: "
            f"{statement.as_string(database)}"
        ) from error


def _exists(database: Database, name: str) -> bool:
    found = database.execute("SELECT to_regclass(%s::text)", [name]).fetchone()
    return found is not None and found[0] is not None


def read_standing(database: Database, table: Table, queue_id: str) -> Standing:
    """Read a queue's row of the table of positions."""
    statement = sql.SQL("SELECT epoch, position FROM {} WHERE queue_id = %s").format(table.positions)
    found = database.execute(statement, [queue_id]).fetchone()
    return Standing(None, None) if found is None else Standing(*found)


def take_over(database: Database, table: Table, queue_id: str, epoch: int, bridge: str) -> Standing:
    """Raise the epoch to the driver's, unless it is higher. Waits for writers that are committing."""
    statement = sql.SQL(
        "INSERT INTO {} AS p (queue_id, epoch, bridge) VALUES (%s, %s, %s) ON CONFLICT (queue_id) DO UPDATE"
        " SET epoch = excluded.epoch, bridge = excluded.bridge WHERE p.epoch <= excluded.epoch"
        " RETURNING epoch, position"
    ).format(table.positions)
    with _Transaction(database, table) as transaction:
        found = database.execute(statement, [queue_id, epoch, bridge]).fetchone()
        if found is not None:
            transaction.commit()
    return read_standing(database, table, queue_id) if found is None else Standing(*found)


def write_rows(
    database: Database,
    table: Table,
    columns: Sequence[str],
    make_block: Callable[[], bytes],
    move: Callable[[Database, Table], bool],
) -> bool:
    """Write rows and position in one transaction; false, and nothing written, if the position did not move."""
    block = make_block()
    copy_statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        table.identifier, sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with _Transaction(database, table) as transaction:
        with database.cursor() as cursor, cursor.copy(copy_statement) as copy:
            copy.write(block)
        if not move(database, table):
            return False
        transaction.commit()
        return True


def move_position(
    database: Database, table: Table, *, queue_id: str, epoch: int, first_offset: int, next_offset: int
) -> bool:
    """Advance a position, unless there is a later driver or the position is beyond the batch's first offset."""
    statement = sql.SQL(
        "UPDATE {} SET position = %s, written_at = now()"
        " WHERE queue_id = %s AND epoch = %s AND (position IS NULL OR position <= %s)"
    ).format(table.positions)
    return database.execute(statement, [next_offset, queue_id, epoch, first_offset]).rowcount == 1


def refused_index(context: str | None, table: Table) -> int | None:
    """Index of the row at which COPY failed, from the context of the error: ``COPY rows, line 3, column qos``."""
    # The words in between are in the server's language.
    found = re.search(rf"^COPY {re.escape(table.name)}, \D*(\d+)", context or "", re.MULTILINE)
    return int(found[1]) - 1 if found else None


class _Transaction:
    """A transaction that is rolled back unless `commit` succeeded."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._begin = table.begin
        self._is_committed = False

    def __enter__(self) -> Self:
        self._database.execute(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_committed:
            # Without a connection the server rolls back by itself, and the error that is being raised has the cause.
            with suppress(psycopg.OperationalError):
                self._database.execute("ROLLBACK")

    def commit(self) -> None:
        self._database.execute("COMMIT")
        self._is_committed = True
