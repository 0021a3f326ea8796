"""The warehouse that the brokers' bridge brings messages to."""

from __future__ import annotations

from pathlib import Path

from demo.processes.process import AnnouncingProcess


class WarehouseService(AnnouncingProcess):
    """The service outside.

    Args:
        database: Where it keeps what it gets.
        port: Where it accepts.
        log_path: Where its log goes.
    """

    def __init__(self, database: Path, port: int, log_path: Path) -> None:
        super().__init__("the warehouse", "demo.warehouse.service", [str(port), str(database)], log_path)
        self.database = database
        self.url = f"http://127.0.0.1:{port}/messages"
