"""The journal server that all brokers share."""

from __future__ import annotations

from pathlib import Path

from demo.processes.process import AnnouncingProcess


class Server(AnnouncingProcess):
    """A journal server on one data directory and port.

    Args:
        data: Its data directory.
        port: Port on which it accepts connections.
        log_path: File of its log.
    """

    def __init__(self, data: Path, port: int, log_path: Path) -> None:
        settings = {
            "listen.tcp": f"127.0.0.1:{port}",
            "listen.websocket": "",
            "listen.http": "",
            "storage.journal_file_bytes": "16 MiB",
            "storage.journal_budget_bytes": "64 MiB",
        }
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        super().__init__("the server", "journal.cli.main", ["serve", "--data", str(data), *options], log_path)
        self.url = f"journal://127.0.0.1:{port}"
