"""What one kind of store does beside the contract: its errors, and what it leaves behind."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import obstore.store
import psycopg
import pytest

from journal.logstore import Created, LogStore
from journal.logstore.errors import (
    ForeignStoreError,
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
    UnknownOutcomeError,
)
from journal.logstore.stores import directory as directory_module
from journal.logstore.stores.directory import DirectoryLogStore
from journal.logstore.stores.object_store import ObjectLogStore, open_s3
from journal.logstore.stores.postgresql import PostgresqlLogStore
from tests.logstore import seaweed_server
from tests.logstore.stage import conninfo
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.sinks import postgresql_server

KEY: Final = "store/log/1"
Opener = Callable[..., PostgresqlLogStore]


def fail(number: int) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def postgresql() -> Iterator[Opener]:
    """Opens stores, which are closed after the test."""
    with ExitStack() as opened:

        def open_store(where: str, **settings: float) -> PostgresqlLogStore:
            return opened.enter_context(closing(PostgresqlLogStore(where, **settings)))

        yield open_store


def test_a_directory_that_is_missing_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachableError, match="is no directory: create it, or mount its file system"):
        DirectoryLogStore(tmp_path / "missing")


def test_a_directory_that_vanishes_is_unreachable_and_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    store = DirectoryLogStore(tmp_path / "log")
    (tmp_path / "log").rmdir()
    with pytest.raises(StoreUnreachableError, match=r"create of store/log/1: No such file"):
        store.create(KEY, b"")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        ("write", errno.ENOSPC, StoreFullError),
        ("write", errno.EDQUOT, StoreFullError),
        ("open", errno.EACCES, StoreCredentialsError),
        ("open", errno.EROFS, StoreCredentialsError),
        ("write", errno.EIO, UnknownOutcomeError),
        ("fsync", errno.EIO, UnknownOutcomeError),
    ],
)
def test_an_error_of_the_disk_says_what_became_of_the_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, expected: type[LogStoreError]
) -> None:
    store = DirectoryLogStore(tmp_path)
    store.create("store/log/0", b"")
    with monkeypatch.context() as patch:
        patch.setattr(directory_module.os, call, fail(number))
        with pytest.raises(expected, match=os.strerror(number)):
            store.create(KEY, b"x")
    assert store.get(KEY) is None
    assert [path.name for path in (tmp_path / "store" / "log").iterdir()] == ["0"]


def test_a_name_that_could_not_be_synced_is_neither_created_nor_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryLogStore(tmp_path)
    store.create("store/log/0", b"")
    with monkeypatch.context() as patch:
        patch.setattr(directory_module, "_sync_name", fail(errno.EIO))
        with pytest.raises(UnknownOutcomeError):
            store.create(KEY, b"x")
    assert store.create(KEY, b"x") is Created.EXISTS


def test_a_reader_syncs_the_directory_of_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its creator may have been killed between the link and the sync. A power failure would take the object back."""
    DirectoryLogStore(tmp_path).create(KEY, b"x")
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(directory_module.os, "fsync", noted)
    requests: list[Callable[[LogStore], object]] = [
        lambda store: store.get(KEY),
        lambda store: store.list_after("store/log/"),
    ]
    for request in requests:
        synced.clear()
        request(DirectoryLogStore(tmp_path))
        assert synced == [str(tmp_path / "store" / "log")]
    synced.clear()
    assert DirectoryLogStore(tmp_path).create(KEY, b"y") is Created.EXISTS
    assert {str(tmp_path), str(tmp_path / "store"), str(tmp_path / "store" / "log")} <= set(synced)


def test_an_object_store_that_does_not_listen_is_unreachable() -> None:
    store = open_s3("bucket", f"http://127.0.0.1:{free_port()}", access_key_id="key", secret_access_key="secret")
    requests: list[Callable[[], object]] = [
        lambda: store.create(KEY, b""),
        lambda: store.get(KEY),
        lambda: store.list_after(KEY),
        lambda: store.delete(KEY),
    ]
    for request in requests:
        with pytest.raises(StoreUnreachableError, match="store/log/1"):
            request()


def test_an_object_store_that_must_repeat_is_refused() -> None:
    with pytest.raises(ValueError, match=r'retry_config=\{"max_retries": 0\}'):
        ObjectLogStore(obstore.store.S3Store("bucket", region="us-east-1"))


@pytest.mark.slow("starts SeaweedFS")
def test_a_wrong_secret_of_an_object_store_is_refused() -> None:
    with pytest.raises(StoreCredentialsError, match="SignatureDoesNotMatch"):
        seaweed_server.shared_server().open(secret="wrong").create(KEY, b"")


@pytest.mark.slow("starts PostgreSQL")
class TestPostgresql:
    def test_a_server_that_does_not_listen_is_unreachable(self, postgresql: Opener) -> None:
        with pytest.raises(StoreUnreachableError, match="connection"):
            postgresql(f"host=127.0.0.1 port={free_port()} user=x dbname=x").get(KEY)

    def test_a_wrong_password_is_refused(self, postgresql: Opener) -> None:
        with pytest.raises(StoreCredentialsError, match="password authentication failed"):
            postgresql(conninfo(password="wrong")).create(KEY, b"")

    def test_a_user_who_may_not_write_is_refused(self, postgresql: Opener) -> None:
        where = conninfo()
        postgresql(where).create("store/first", b"")
        with postgresql_server.shared_server().connect(postgresql_server.DATABASE) as admin:
            admin.execute("ALTER TABLE journal_log OWNER TO postgres")
            admin.execute(f"GRANT SELECT ON journal_log TO {postgresql_server.USER}")
        store = postgresql(where)
        assert store.get(KEY) is None
        place = f"database {postgresql_server.DATABASE} at {postgresql_server.HOST}:\\d+"
        with pytest.raises(
            StoreCredentialsError, match=f"create of {KEY}: {place}: permission denied for table journal_log"
        ):
            store.create(KEY, b"")

    def test_a_login_that_is_refused_is_a_refusal(self, postgresql: Opener) -> None:
        """It counted as a database that cannot be reached, and was repeated for minutes."""
        where = conninfo()
        with postgresql_server.shared_server().connect() as admin:
            admin.execute(f"ALTER ROLE {postgresql_server.USER} NOLOGIN")
            try:
                with pytest.raises(StoreCredentialsError, match="is not permitted to log in"):
                    postgresql(where).get(KEY)
            finally:
                admin.execute(f"ALTER ROLE {postgresql_server.USER} LOGIN")

    def test_a_database_in_which_nothing_was_stored_is_read_and_not_changed(self, postgresql: Opener) -> None:
        """`journal cluster status` of an empty database made the table there."""
        where = conninfo()
        store = postgresql(where)
        assert (store.get(KEY), store.list_after(KEY)) == (None, [])
        store.delete(KEY)
        with psycopg.connect(where) as line:
            assert line.execute("SELECT to_regclass('journal_log')").fetchone() == (None,)

    def test_an_object_whose_table_was_dropped_does_not_count_as_deleted(self, postgresql: Opener) -> None:
        where = conninfo()
        store = postgresql(where)
        assert store.create(KEY, b"") is Created.OURS
        with psycopg.connect(where, autocommit=True) as line:
            line.execute("DROP TABLE journal_log")
        for request in (lambda: store.get(KEY), lambda: store.list_after(KEY), lambda: store.create(KEY, b"")):
            with pytest.raises(ForeignStoreError, match="journal_log"):
                request()

    def test_another_table_of_that_name_is_foreign(self, postgresql: Opener) -> None:
        where = conninfo()
        with psycopg.connect(where, autocommit=True) as line:
            line.execute("CREATE TABLE journal_log (id int)")
        with pytest.raises(ForeignStoreError, match="journal_log"):
            postgresql(where).create(KEY, b"")

    def test_a_server_that_is_killed_leaves_the_outcome_unknown_and_is_used_again(self, postgresql: Opener) -> None:
        server = postgresql_server.shared_server()
        store = postgresql(conninfo())
        assert store.create(KEY, b"first") is Created.OURS
        server.kill()
        with pytest.raises(UnknownOutcomeError):
            store.create("store/log/2", b"")
        with pytest.raises(StoreUnreachableError):
            store.create("store/log/2", b"")
        server.start()
        assert store.get(KEY) == b"first"
        assert store.create("store/log/2", b"") is Created.OURS

    def test_a_request_that_waits_too_long_leaves_the_outcome_unknown(self, postgresql: Opener) -> None:
        where = conninfo()
        store = postgresql(where, timeout_s=0.3)
        store.create("store/first", b"")
        with psycopg.connect(where) as rival:
            rival.execute("INSERT INTO journal_log (key, data) VALUES (%s, '')", (KEY,))
            with pytest.raises(UnknownOutcomeError, match="statement timeout"):
                store.create(KEY, b"")
            rival.rollback()
        assert store.create(KEY, b"") is Created.OURS

    def test_a_commit_that_no_standby_has_confirmed_leaves_the_outcome_unknown(self, postgresql: Opener) -> None:
        """PostgreSQL reports such a commit as done, with a warning, when somebody cancels its wait for the standby."""
        store = postgresql(conninfo())
        store.create("store/first", b"")
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        with postgresql_server.shared_server().connect() as admin, ThreadPoolExecutor(1) as thread:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
            admin.execute("SELECT pg_reload_conf()")
            try:
                # The setting is in force some time after the reload: create until one waits.
                keys = (f"store/log/{number}" for number in itertools.count())
                created = thread.submit(store.create, next(keys), b"")
                give_up_at = time.monotonic() + PATIENCE_S
                while (row := admin.execute(waiting).fetchone()) is None:
                    assert time.monotonic() < give_up_at
                    if created.done():
                        created = thread.submit(store.create, next(keys), b"")
                admin.execute("SELECT pg_cancel_backend(%s)", row)
                with pytest.raises(UnknownOutcomeError, match="canceling wait for synchronous replication"):
                    created.result()
            finally:
                admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
                admin.execute("SELECT pg_reload_conf()")

    def test_commits_are_synchronous_even_if_the_role_has_that_off(self, postgresql: Opener) -> None:
        where = conninfo()
        with postgresql_server.shared_server().connect() as admin:
            admin.execute(f"ALTER DATABASE {postgresql_server.DATABASE} SET synchronous_commit = off")
        store = postgresql(where)
        assert store._run("show", KEY, lambda line: line.execute("SHOW synchronous_commit").fetchone()) == ("on",)
