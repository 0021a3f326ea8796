"""A real server in a process of its own that is started on the same directory and port again and again."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals

from tests.patience import PATIENCE_S
from tests.ports import free_port

# Small files, so that segments are rolled, flushed and journal files recycled all the time.
CONFIGURATION = """
[listen]
tcp = "127.0.0.1:{port}"
websocket = ""
http = ""
[storage]
journal_file_bytes = "1 MiB"
journal_budget_bytes = "2 MiB"
segment_bytes = "64 KiB"
tail_budget_bytes = "1 MiB"
flush_interval_ms = 20
disk_reserve_bytes = 0
[shards]
# On a slow machine a run is long: nothing may be missing from a shard because it was too large.
memory_max_bytes = 0
[conversion]
max_age_s = 3
delta_grace_s = 0
[limits]
max_batch_bytes = "256 KiB"
max_frame_bytes = "1 MiB"
"""

GATHERING = CONFIGURATION.replace("max_age_s = 3", "max_age_s = 1")
"""The same, and closed segments are gathered as often as the settings allow."""


def wait_or_kill(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> int:
    """The exit status of a process that is expected to end; one that does not end is killed, since its context waits.

    Raises:
        subprocess.TimeoutExpired: It did not end.
    """
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


class KilledServer:
    """A server that is started on the same directory and port again and again.

    Args:
        directory: Where its configuration, log and data lie.
        data: Its data directory; ``data`` below the directory unless given.
        configuration: With ``{port}`` in the place of the port.
        launch: Runs the command line, in place of ``python -m journal.cli.main``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        data: Path | None = None,
        configuration: str = CONFIGURATION,
        launch: Sequence[str] = (sys.executable, "-m", "journal.cli.main"),
    ) -> None:
        self.data = data or directory / "data"
        self.launch = launch
        self.log = directory / "server.log"
        self._directory = directory
        self._configuration = configuration
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Return when it is ready.

        Args:
            prefix: A program that runs the server in its own process, with its arguments.
            environment: Variables besides those of this process.

        Raises:
            AssertionError: It did not get ready; the end of its log is in the message.
        """
        configuration = self._directory / "journal.toml"
        configuration.write_text(self._configuration.format(port=self._port))
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*prefix, *self.launch, "serve", "--data", str(self.data), "--config", str(configuration)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        assert self._process.stdout is not None
        said_something, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        assert said_something, f"nothing within {PATIENCE_S} s; {self.log.read_text()[-4000:]}"
        line = self._process.stdout.readline()
        assert f"tcp={self.address}" in line, f"{line!r}; {self.log.read_text()[-4000:]}"

    def signal(self, how: Signals) -> None:
        """Send a signal and go on."""
        assert self._process is not None
        self._process.send_signal(how)

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait(self) -> int:
        """Wait until it has ended by itself."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def end(self, how: Signals) -> int:
        """Send a signal and wait for the end."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:
            process.send_signal(how)
            return wait_or_kill(process)
