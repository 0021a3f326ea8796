"""What is peculiar to the sink `postgresql`: transactions and their locks, types of columns, and what keeps it out."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from psycopg import Connection, sql

from broker_adapter.sinks import (
    Batch,
    BatchRefusedError,
    DriverFencedError,
    Row,
    Sink,
    SinkContext,
    SinkUnavailableError,
)
from broker_adapter.sinks.kinds import find_kind
from broker_adapter.sinks.postgresql import address
from broker_adapter.sinks.postgresql.settings import PostgresqlSettings
from broker_adapter.sinks.postgresql.table import Table, refused_index
from journal.settings.values import ConfigurationError
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.sinks.postgresql_server import PASSWORD, USER
from tests.sinks.stage import batch_of, batches_of, bring, numbers, open_sink, row
from tests.sinks.stages.postgresql import PostgresqlStage, open_stage


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[PostgresqlStage]:
    async with open_stage(tmp_path) as opened:
        yield opened


async def ready(sink: Sink) -> Sink:
    await sink.check()
    await sink.position()
    return sink


# Both or neither

AT_COMMIT = "CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON rows DEFERRABLE INITIALLY DEFERRED"
AT_COPY = "CREATE TRIGGER gate BEFORE INSERT ON rows"


async def gate(stage: PostgresqlStage, kind: str) -> None:
    """Have transactions wait, in a trigger of a kind, while the test is in `closed`."""
    await stage.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$"
    )
    await stage.execute(f"{kind} FOR EACH ROW EXECUTE FUNCTION wait()")


@contextmanager
def closed(stage: PostgresqlStage) -> Iterator[Connection[tuple[Any, ...]]]:
    with stage.server.connect(stage.database) as connection:
        connection.execute("SELECT pg_advisory_lock(1)")
        yield connection


async def wait_at_gate(stage: PostgresqlStage) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while await stage.execute(waiting) == [(0,)]:
        await trio.sleep(0.01)


async def test_a_commit_whose_reply_is_lost_is_found_in_the_position(stage: PostgresqlStage) -> None:
    await gate(stage, AT_COMMIT)
    with trio.fail_after(PATIENCE_S):
        async with open_sink(stage) as sink, trio.open_nursery() as nursery:
            await ready(sink)

            async def write() -> None:
                with pytest.raises(SinkUnavailableError):
                    await sink.write(batches_of(1, 10)[0])

            with closed(stage):
                nursery.start_soon(write)
                await wait_at_gate(stage)
                stage.proxy.hold_replies()
            while len(await stage.rows()) < 10:
                await trio.sleep(0.01)
            stage.proxy.cut()
            while nursery.child_tasks:
                await trio.sleep(0.001)
            stage.proxy.pass_all()
            await sink.check()
            assert await sink.position() == 10
    assert await numbers(stage) == list(range(10))


async def test_the_position_waits_for_an_older_driver_that_is_committing(stage: PostgresqlStage) -> None:
    await gate(stage, AT_COMMIT)
    found: list[int | None] = []

    async def ask(sink: Sink) -> None:
        found.append(await sink.position())

    with trio.fail_after(PATIENCE_S):
        async with open_sink(stage, epoch=1) as old, open_sink(stage, epoch=2) as new, trio.open_nursery() as nursery:
            await ready(old)
            await new.check()
            with closed(stage):
                nursery.start_soon(old.write, batches_of(1, 10)[0])
                await wait_at_gate(stage)
                nursery.start_soon(ask, new)
                waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
                while await stage.execute(waiting) == [(0,)]:
                    await trio.sleep(0.01)
                assert found == []
    assert found == [10]


async def test_an_older_driver_that_is_still_copying_delays_no_other_and_writes_nothing(
    stage: PostgresqlStage,
) -> None:
    await gate(stage, AT_COPY)

    async def write(sink: Sink) -> None:
        with pytest.raises(DriverFencedError):
            await sink.write(batches_of(1, 10)[0])

    with trio.fail_after(PATIENCE_S):
        async with open_sink(stage, epoch=1) as old, open_sink(stage, epoch=2) as new, trio.open_nursery() as nursery:
            await ready(old)
            await new.check()
            with closed(stage):
                nursery.start_soon(write, old)
                await wait_at_gate(stage)
                assert await new.position() is None
    assert await stage.rows() == []


async def test_a_cancelled_write_ends_at_once_though_the_server_waits_and_leaves_nothing(
    stage: PostgresqlStage,
) -> None:
    await gate(stage, AT_COPY)
    with trio.fail_after(PATIENCE_S):
        # What waited for the end of a call, or for its time limit, would not end in time.
        async with open_sink(stage, timeout_s=3600) as sink:
            await ready(sink)
            with closed(stage):
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(sink.write, batch_of([row(0)]))
                        await wait_at_gate(stage)
                        scope.cancel()
                with pytest.raises(SinkUnavailableError, match="call check first"):
                    await sink.write(batch_of([row(0)]))
                assert await (await ready(sink)).position() is None
            await sink.write(batch_of([row(1)]))
    assert await numbers(stage) == [1]


async def test_a_sink_that_is_closed_ends_what_is_under_way(stage: PostgresqlStage) -> None:
    await gate(stage, AT_COPY)

    async def write(sink: Sink) -> None:
        with pytest.raises(SinkUnavailableError, match=stage.address):
            await sink.write(batch_of([row(0)]))

    with trio.fail_after(PATIENCE_S):
        async with open_sink(stage) as sink, trio.open_nursery() as nursery:
            await ready(sink)
            with closed(stage):
                nursery.start_soon(write, sink)
                await wait_at_gate(stage)
                await sink.aclose()
                while nursery.child_tasks:
                    await trio.sleep(0.001)
            await (await ready(sink)).write(batch_of([row(1)]))
    assert await numbers(stage) == [1]


async def test_a_server_with_asynchronous_commit_is_switched_to_synchronous(stage: PostgresqlStage) -> None:
    await stage.execute(f"ALTER DATABASE {stage.database} SET synchronous_commit = off")
    await stage.execute("ALTER TABLE rows ADD COLUMN how text DEFAULT current_setting('synchronous_commit')")
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(1, 1))
    assert await stage.execute("SELECT how FROM rows") == [("on",)]


async def test_a_connection_that_the_server_ends_is_an_outage(stage: PostgresqlStage) -> None:
    async with open_sink(stage) as sink:
        await ready(sink)
        await stage.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'journal bridge suite'",
            "postgres",
        )
        with pytest.raises(SinkUnavailableError, match=stage.address):
            await sink.write(batch_of([row(0)]))
        await (await ready(sink)).write(batch_of([row(0)]))
    assert await numbers(stage) == [0]


async def test_many_bridges_may_make_the_table_of_positions_at_once(stage: PostgresqlStage) -> None:
    async def check(queue_id: str) -> None:
        async with open_sink(stage, queue_id=queue_id) as sink:
            await ready(sink)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(check, f"queue-{number}")
    found = await stage.execute("SELECT queue_id, position, epoch, bridge FROM journal_bridge_positions ORDER BY 1")
    assert found == [(f"queue-{number}", None, 1, "suite") for number in range(8)]


async def test_a_type_with_the_name_of_the_table_of_positions_is_named(stage: PostgresqlStage) -> None:
    await stage.execute("CREATE TYPE journal_bridge_positions AS ENUM ('a')")
    async with open_sink(stage) as sink:
        with pytest.raises(SinkUnavailableError, match='type "journal_bridge_positions" already exists'):
            await sink.check()


# Refusals


@pytest.mark.parametrize(
    ("change", "bad", "index", "told"),
    [
        ("ADD PRIMARY KEY (n)", row(1), 4, "duplicate key.*23505"),
        ("ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED", row(1), None, "a row .*duplicate key.*23505"),
        ("ALTER COLUMN body SET NOT NULL", {**row(4), "body": None}, 4, "null value.*23502"),
        ("ADD CHECK (length(body) < 5)", row(4, body="longer"), 4, "row 4 .*check constraint.*23514"),
        ("ALTER COLUMN n TYPE smallint", row(70_000), 4, "70000.*22003"),
        ("ALTER COLUMN body TYPE varchar(3)", row(4, body="four"), 4, "too long.*22001"),
        ("ALTER COLUMN value TYPE jsonb USING NULL", row(4, value={"a": "\x00"}), 4, "22P05"),
        ("ALTER COLUMN value TYPE jsonb USING NULL", row(4, value=b"{"), 4, "json.*22P02"),
        ("ALTER COLUMN value TYPE timestamptz USING NULL", row(4, value=10**18), 4, "value: .*not in a year"),
        ("ALTER COLUMN value TYPE int USING NULL", row(4, value="\ud800"), 4, "value: half a character"),
    ],
)
async def test_a_refused_row_is_named(
    stage: PostgresqlStage, change: str, bad: Row, index: int | None, told: str
) -> None:
    await stage.execute(f"ALTER TABLE rows {change}")
    rows = [row(n) for n in range(8)]
    rows[4] = bad
    async with open_sink(stage) as sink:
        await ready(sink)
        with pytest.raises(BatchRefusedError, match=f"{stage.address}.*{told}") as refused:
            await sink.write(batch_of(rows))
        assert refused.value.index == index
        assert await stage.rows() == []
        await sink.write(batch_of([*rows[:4], *rows[5:]]))
    assert await numbers(stage) == [0, 1, 2, 3, 5, 6, 7]


async def test_a_trigger_may_refuse_rows(stage: PostgresqlStage) -> None:
    await stage.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.n = 3 THEN RAISE 'three is not\nwelcome'; END IF; RETURN NEW; END $$"
    )
    await stage.execute("CREATE TRIGGER refuse BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION refuse()")
    async with open_sink(stage) as sink:
        await ready(sink)
        with pytest.raises(BatchRefusedError, match="three is not welcome") as refused:
            await sink.write(batches_of(1, 5)[0])
    assert refused.value.index == 3


@pytest.mark.parametrize(
    ("context", "index"),
    [
        ("COPY a.b, line 3", 2),
        ("COPY a.b, Zeile 12, Spalte qos: »x«", 11),
        ("PL/pgSQL function f() line 7 at RAISE\nCOPY a.b, line 1", 0),
        ("COPY axb, line 3", None),
        ("SQL statement 5", None),
        (None, None),
    ],
)
def test_the_row_is_read_from_the_context_in_any_language(context: str | None, index: int | None) -> None:
    assert refused_index(context, Table("public", "a.b", {}, sql.SQL("BEGIN"))) == index


# Columns


async def test_the_usual_columns_go_into_the_table_that_the_error_proposes(stage: PostgresqlStage) -> None:
    columns = ("topic", "client", "qos", "timestamp", "payload", "offset", "headers")
    values = ("plant/1", None, 1, 1_700_000_000_000_001, b"\xff\x00", 7, {"content-type": "a"})
    async with open_sink(stage, table="Mixed case", columns=columns) as sink:
        with pytest.raises(SinkUnavailableError) as told:
            await sink.check()
        await stage.execute(str(told.value).partition("for example: ")[2])
        await ready(sink)
        await sink.write(batch_of([dict(zip(columns, values, strict=True))]))
    (found,) = await stage.execute('SELECT * FROM "Mixed case"')
    assert found == (*values[:3], datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), *values[4:])


async def test_values_reach_columns_of_other_types(stage: PostgresqlStage) -> None:
    columns = {"flag": "boolean", "part": "double precision", "document": "jsonb", "name": "jsonb", "raw": "bytea"}
    defined = ", ".join(f"{name} {type_name}" for name, type_name in columns.items())
    await stage.execute(f"CREATE TABLE typed ({defined})")
    rows = [
        {"flag": True, "part": 0.1, "document": b'{"a": 1}', "name": "a", "raw": "text"},
        {"flag": False, "part": float("inf"), "document": [1, None], "name": 5, "raw": b""},
        dict.fromkeys(columns),
    ]
    async with open_sink(stage, table="public.typed", columns=tuple(columns)) as sink:
        await bring(sink, [batch_of(rows)])
    assert await stage.execute("SELECT * FROM typed") == [
        (True, 0.1, {"a": 1}, "a", b"text"),
        (False, float("inf"), [1, None], 5, b""),
        (None,) * 5,
    ]


async def test_types_are_found_below_domains(stage: PostgresqlStage) -> None:
    await stage.execute("CREATE DOMAIN raw AS bytea CHECK (length(VALUE) < 10)")
    await stage.execute("ALTER TABLE rows ALTER COLUMN value TYPE raw USING NULL")
    async with open_sink(stage) as sink:
        await bring(sink, [batch_of([row(0, value=b"\xff")])])
    assert await stage.execute("SELECT value FROM rows") == [(b"\xff",)]


async def test_positions_are_beside_the_table(stage: PostgresqlStage) -> None:
    await stage.execute("CREATE SCHEMA other")
    await stage.execute("ALTER TABLE rows SET SCHEMA other")
    async with open_sink(stage, table="other.rows") as sink:
        await bring(sink, batches_of(1, 3))
    assert await stage.execute("SELECT position FROM other.journal_bridge_positions") == [(3,)]


# What keeps it out


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("ALTER TABLE rows DROP COLUMN body", "no column body.*it has number, topic, n, value.*ALTER TABLE"),
        ("ALTER TABLE rows ADD COLUMN owner text NOT NULL", "column owner.*must not be NULL.*default"),
        ("ALTER TABLE rows DROP COLUMN n; ALTER TABLE rows ADD n int GENERATED ALWAYS AS (1) STORED", "n .*generated"),
        ("ALTER TABLE rows OWNER TO postgres", 'bridge may not insert into.*GRANT INSERT ON "rows" TO "bridge"'),
        ("ALTER DATABASE {} SET default_transaction_read_only = on", "accepts no changes.*read-write"),
        ("CREATE VIEW journal_bridge_positions AS SELECT 1 AS n", "42703"),
    ],
)
async def test_what_the_table_lacks_is_reported_with_the_way_out(
    stage: PostgresqlStage, statement: str, told: str
) -> None:
    await stage.execute(statement.format(stage.database), "postgres")
    async with open_sink(stage) as sink:
        with pytest.raises(SinkUnavailableError, match=f"^{stage.address}, table rows: .*{told}"):
            await sink.check()


async def test_the_error_of_a_user_who_may_not_make_the_table_of_positions_says_how_to(stage: PostgresqlStage) -> None:
    await stage.execute("ALTER SCHEMA public OWNER TO postgres", "postgres")
    await stage.execute(f"GRANT USAGE ON SCHEMA public TO {USER}", "postgres")
    async with open_sink(stage) as sink:
        with pytest.raises(SinkUnavailableError) as told:
            await sink.check()
        await stage.execute(str(told.value).partition(" on it: ")[2], "postgres")
        await stage.execute(f"GRANT SELECT, INSERT, UPDATE ON journal_bridge_positions TO {USER}", "postgres")
        await bring(sink, batches_of(1, 3))
    assert await numbers(stage) == [0, 1, 2]


async def test_a_table_that_is_dropped_under_way_is_an_outage_until_it_is_back(stage: PostgresqlStage) -> None:
    async with open_sink(stage) as sink:
        await ready(sink)
        await stage.execute("ALTER TABLE rows RENAME TO gone")
        with pytest.raises(SinkUnavailableError, match=r"42P01.*dropped or renamed"):
            await sink.write(batch_of([row(0)]))
        await stage.execute("ALTER TABLE gone RENAME TO rows")
        await (await ready(sink)).write(batch_of([row(0)]))
    assert await numbers(stage) == [0]


async def test_a_position_that_was_removed_must_be_asked_for_again(stage: PostgresqlStage) -> None:
    async with open_sink(stage) as sink:
        await ready(sink)
        await stage.execute("DELETE FROM journal_bridge_positions")
        with pytest.raises(SinkUnavailableError, match="read the position again"):
            await sink.write(batch_of([row(0)]))
        await (await ready(sink)).write(batch_of([row(0)]))


# Addresses


async def test_the_next_of_several_hosts_is_tried(stage: PostgresqlStage) -> None:
    url = f"postgresql://{USER}@127.0.0.1:{free_port()},{stage.proxy.address}/{stage.database}"
    async with open_sink(stage, url=url) as sink:
        await bring(sink, batches_of(1, 3))
    assert await numbers(stage) == [0, 1, 2]


async def test_a_password_in_the_url_is_used_and_never_shown(stage: PostgresqlStage) -> None:
    url = stage.address.replace(f"{USER}@", f"{USER}:{PASSWORD}@")
    async with open_sink(stage, url=url, password_file="") as sink:
        await sink.check()
        stage.proxy.refuse()
        with pytest.raises(SinkUnavailableError, match=stage.address) as told:
            await sink.position()
        assert PASSWORD not in str(told.value)


class Names(trio.abc.HostnameResolver):
    """Knows ``one`` and ``two``."""

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # noqa: A002 - trio's name for it
        known = {b"one": ["192.0.2.1", "192.0.2.2"], b"two": ["192.0.2.3"]}
        name = host.encode() if isinstance(host, str) else host
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, type, 6, "", (place, int(port))) for place in known[name]]

    async def getnameinfo(self, sockaddr, flags):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql://one/x", ("one,one", "192.0.2.1,192.0.2.2", "5432,5432")),
        ("postgresql://one:1,absent:2,two:3/x", ("one,one,two", "192.0.2.1,192.0.2.2,192.0.2.3", "1,1,3")),
        ("host=/run/postgresql,two port=7 dbname=x", ("/run/postgresql,two", ",192.0.2.3", "7,7")),
    ],
)
async def test_hosts_are_looked_up_before_connecting(url: str, found: tuple[str, str, str]) -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    looked_up = await address.look_up(address.read_url(url))
    assert (looked_up["host"], looked_up["hostaddr"], looked_up["port"]) == found


async def test_an_unknown_host_is_an_outage() -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    with pytest.raises(OSError, match="'absent' is not known"):
        await address.look_up({"host": "absent"})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "postgresql://u:secret@host:port:port/x"}, "url cannot be parsed by libpq"),
        ({"url": "postgresql://u:se@secret@host/x"}, "url cannot be parsed by libpq"),
        ({"url": "postgresql://u:1/secret@host/x"}, "url cannot be parsed by libpq"),
        ({"url": "nonsense secret"}, "url cannot be parsed by libpq"),
        ({"url": "postgresql://u:secret@host/x", "password_file": "f"}, "url has a password and password_file"),
    ],
)
def test_settings_that_cannot_be_used_are_reported_without_secrets(settings: dict[str, str], problem: str) -> None:
    made = PostgresqlSettings(table="rows", **settings)
    (found,) = find_kind("postgresql").check(made)
    assert found.startswith(problem)
    assert "secret" not in found + repr(made)


async def test_a_batch_with_gaps_moves_the_position_to_its_end(stage: PostgresqlStage) -> None:
    async with open_sink(stage) as sink:
        await ready(sink)
        await sink.write(Batch(0, 100, [7, 90], [row(7), row(90)], 100))
        await sink.write(Batch(100, 120, [100], [row(100)], 100))
        assert await sink.position() == 120


async def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "broker_adapter.sinks.postgresql.sink", raising=False)
    settings = PostgresqlSettings(url="host=127.0.0.1", table="rows")
    with pytest.raises(ConfigurationError, match=r"psycopg .*pip install .*psycopg"):
        async with find_kind("postgresql").open(settings, SinkContext("b", "queue-1", ("n",), 1)):
            pass
