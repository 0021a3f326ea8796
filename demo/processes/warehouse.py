"""The warehouse, the sink of the brokers' bridge."""

from __future__ import annotations

from pathlib import Path

from demo.processes.process import AnnouncingProcess


class WarehouseService(AnnouncingProcess):
    """The external web service.

    Args:
        database: File in which it stores rows.
        port: Port on which it accepts requests.
        log_path: File of its log.
    """

    def __init__(self, database: Path, port: int, log_path: Path) -> None:
        super().__init__("the warehouse", "demo.warehouse.service", [str(port), str(database)], log_path)
        self.database = database
        self.url = f"http://127.0.0.1:{port}/messages"
