"""The product as an MQTT cluster: a journal server and brokers on it, each a process, as a user would start them."""

from __future__ import annotations

from pathlib import Path

from benchmarks import processes
from benchmarks.stage import REPOSITORY, start_journal

CONFIG = """\
[broker]
id = "{broker_id}"
store = "journal://127.0.0.1:{port}"
processes = {processes}

[listen]
mqtt = "127.0.0.1:0"

[access]
anonymous = true
"""


class OurBrokers:
    """A running cluster.

    Args:
        directory: Empty directory for data and logs; must be on a real disk.
        count: Number of brokers.
        processes_each: Number of processes of each.
        more_config: Appended to the configuration of each.
    """

    def __init__(self, directory: Path, *, count: int, processes_each: int = 1, more_config: str = "") -> None:
        self._directory = directory
        self._count = count
        self._processes_each = processes_each
        self._more_config = more_config
        self._start()

    def _start(self) -> None:
        self.brokers: list[processes.Server] = []
        directory = self._directory
        self._journal = start_journal(directory / "data", directory / "journal.log")
        try:
            for number in range(self._count):
                config_path = directory / f"broker-{number}.toml"
                config = CONFIG.format(
                    broker_id=f"bench-{number}", port=self._journal.address[1], processes=self._processes_each
                )
                config_path.write_text(config + self._more_config)
                argv = processes.python_module("broker_adapter.mqtt.cli.main", "--config", str(config_path.resolve()))
                log_path = directory / f"broker-{number}.log"
                self.brokers.append(processes.start_announcing(argv, log_path, cwd=REPOSITORY))
        except processes.ProcessError:
            self.close()
            raise

    def restart(self) -> float:
        """Stop all of them by SIGTERM and start them again, the server first; seconds until the last one is ready.

        They get other ports.
        """
        self.close()
        self._start()
        return sum(server.ready_s for server in self.servers)

    @property
    def servers(self) -> list[processes.Server]:
        """The journal server, then the brokers."""
        return [self._journal, *self.brokers]

    @property
    def journal_address(self) -> tuple[str, int]:
        """Address of the server that the brokers share."""
        return self._journal.address

    def close(self) -> None:
        for server in reversed(self.servers):
            server.stop()
