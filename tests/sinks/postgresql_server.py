"""A PostgreSQL cluster of the tests' own: one for all tests of a run, each of which finds its database empty.

It is made where its user may go (PostgreSQL does not run as root), on a free port, without sockets in the file system,
and with fsync, as by default. It ends with this process.
"""

from __future__ import annotations

import atexit
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import Connection, sql

from tests.patience import PATIENCE_S
from tests.ports import free_port

HOST: Final = "127.0.0.1"
USER: Final = "bridge"
PASSWORD: Final = "not-so-secret"
DATABASE: Final = "test_rows"
_SETTINGS: Final = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "fsync": "on",
    "shared_buffers": "32MB",
    "lc_messages": "C",
}


def find_program(name: str) -> str | None:
    """A program of the newest PostgreSQL; Debian keeps them off the path."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name.zfill(4), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", "")]))


class PostgresqlServer:
    """One cluster.

    Attributes:
        port: Where it listens, also after it was killed.
        password_file: The password of its users, `USER` among them.
        directory: Everything of it lies there.
    """

    def __init__(self, directory: Path, initdb: str, program: str) -> None:
        self.port = free_port()
        self.password_file = directory / "password"
        self.directory = directory
        self._data = directory / "data"
        self._log = directory / "log"
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = _account()
            self._identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            os.chown(directory, account.pw_uid, account.pw_gid)
        self.password_file.write_text(f"{PASSWORD}\n")
        if self._identity:
            os.chown(self.password_file, self._identity["user"], self._identity["group"])
        options = ("--auth=scram-sha-256", f"--pwfile={self.password_file}", "--encoding=UTF8", "--locale=C")
        subprocess.run(
            [initdb, f"--pgdata={self._data}", "--username=postgres", *options],
            check=True,
            capture_output=True,
            cwd=directory,
            **self._identity,
        )

    @property
    def user_id(self) -> int:
        """The user that it runs as."""
        return int(self._identity.get("user", os.geteuid()))

    def start(self) -> None:
        settings = [f"--{name}={value}" for name, value in {"port": self.port, **_SETTINGS}.items()]
        # So that it does not outlive tests that were killed: it goes with the thread that starts it.
        assert threading.current_thread() is threading.main_thread(), "other threads may end before the tests do"
        guard = ["setpriv", "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, self._program, "-D", str(self._data), *settings],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                **self._identity,
            )
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    raise AssertionError(f"PostgreSQL did not start:\n{self._log.read_text()}") from None
                time.sleep(0.01)

    def ensure_running(self) -> None:
        """For the next test, whatever this one did."""
        if self._process is None:
            self.start()

    def kill(self) -> None:
        """SIGKILL to the server and to all that it has started."""
        assert self._process is not None
        pid = self._process.pid
        # It must start no more of them now. The signal does not stop it at once if it runs on another processor.
        self._process.send_signal(signal.SIGSTOP)
        _wait_for_state(pid, "TZ")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._process.kill()
        self._process.wait()
        for child in map(int, children):
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
            # A child of a process that is gone is not ours to wait for.
            _wait_for_state(child, "Z")
        self._process = None

    def stop(self) -> None:
        """End it, and remove all that it had."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.directory)

    def connect(self, database: str = "postgres", user: str = "postgres") -> Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host=HOST,
            port=self.port,
            user=user,
            password=PASSWORD,
            dbname=database,
            autocommit=True,
            connect_timeout=10,
        )

    def clear_database(self) -> str:
        """The database `DATABASE`, owned by `USER`, with nothing in it; making another for each test takes too long."""
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [DATABASE]
            )
            connection.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(DATABASE)))
        with self.connect(DATABASE) as connection:
            found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_)'")
            for (name,) in found.fetchall():
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
            connection.execute(sql.SQL("CREATE SCHEMA public AUTHORIZATION {}").format(sql.Identifier(USER)))
        return DATABASE


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and this machine has neither a user postgres nor a user nobody")


def _wait_for_state(pid: int, states: str) -> None:
    """Wait until a process is in one of these states, or is gone."""
    give_up_at = time.monotonic() + PATIENCE_S
    while (state := _state_of(pid)) and state not in states:
        assert time.monotonic() < give_up_at, f"process {pid} stays in state {state}, not in one of {states}"
        time.sleep(0.001)


def _state_of(pid: int) -> str:
    """The letter that the kernel shows for its state; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # It may go at any time, also between opening the file and reading it.
        return ""
    return stat.rpartition(")")[2].split()[0]


@functools.cache
def _server() -> PostgresqlServer | None:
    initdb, program = find_program("initdb"), find_program("postgres")
    if initdb is None or program is None:
        return None
    server = PostgresqlServer(Path(tempfile.mkdtemp(prefix="journal-postgresql-")), initdb, program)
    atexit.register(server.stop)
    server.start()
    with server.connect() as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(USER), sql.Literal(PASSWORD))
        )
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(DATABASE), sql.Identifier(USER))
        )
    return server


def shared_server() -> PostgresqlServer:
    """The cluster of this run, started if it was not; skips the test where PostgreSQL is not installed."""
    server = _server()
    if server is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql; scripts/install-peers does it)")
    return server
