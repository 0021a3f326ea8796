"""PostgreSQL with its defaults: fsync on, 128 MB of shared buffers; without Unix sockets and without passwords."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import processes

USER: Final = "postgres"
DEBIAN: Final = Path("/usr/lib/postgresql")


class Postgresql:
    """A running server with a cluster of its own.

    Args:
        directory: Empty directory for its data and log.

    Raises:
        processes.NotInstalledError: PostgreSQL is not installed, or cannot run here.
        processes.ProcessError: It did not start.
    """

    def __init__(self, directory: Path) -> None:
        initdb, program = _program("initdb"), _program("postgres")
        identity = _identity()
        directory.mkdir(parents=True)
        if identity:
            account = pwd.getpwnam(USER)
            os.chown(directory, account.pw_uid, account.pw_gid)
            # The directory was made for this user; the server's user has to pass through it.
            directory.parent.chmod(0o711)
        data = directory.resolve() / "data"
        options = ("--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C")
        made = subprocess.run(
            [*identity, initdb, f"--pgdata={data}", *options],
            check=False,
            capture_output=True,
            text=True,
            cwd=directory,
        )
        if made.returncode:
            raise processes.ProcessError(f"initdb: {' '.join(made.stderr.split())[:200]}")
        port = processes.free_port()
        argv = [*identity, program, "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", ""]
        self.server = processes.start_listening(argv, port, directory / "log")
        self._wait_ready(_program("pg_isready"))

    @property
    def url(self) -> str:
        """Its URL for libpq."""
        host, port = self.server.address
        return f"postgresql://{USER}@{host}:{port}/postgres"

    @property
    def jdbc_url(self) -> str:
        """Its URL for Java."""
        host, port = self.server.address
        return f"jdbc:postgresql://{host}:{port}/postgres?user={USER}&sslmode=disable&gssEncMode=disable"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows, if it has any."""
        try:
            import psycopg
        except ImportError as error:
            raise processes.NotInstalledError("needs psycopg: make setup") from error
        with psycopg.connect(self.url, autocommit=True, connect_timeout=20) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _wait_ready(self, program: str) -> None:
        """It accepts connections before it answers them."""
        host, port = self.server.address
        give_up_at = time.monotonic() + processes.START_TIMEOUT_S
        while subprocess.run([program, "-q", "-h", host, "-p", str(port)], check=False).returncode:
            if self.server.process.poll() is not None or time.monotonic() > give_up_at:
                self.server.stop(kill=True)
                raise processes.ProcessError("PostgreSQL does not answer")
            time.sleep(0.01)

    def close(self) -> None:
        self.server.stop()


def _program(name: str) -> str:
    """Path of a program of the newest version; Debian does not put them into the PATH."""
    places = sorted(DEBIAN.glob("*/bin"), key=lambda path: path.parent.name.zfill(4), reverse=True)
    found = shutil.which(name, path=os.pathsep.join(map(str, places)))
    return found or processes.installed(name)


def _identity() -> list[str]:
    """Prefix of a command line with which it does not run as root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return []
    try:
        account = pwd.getpwnam(USER)
    except KeyError:
        raise processes.NotInstalledError(f"does not run as root, and there is no user {USER}") from None
    ids = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    return [processes.installed("setpriv"), *ids, "--"]
