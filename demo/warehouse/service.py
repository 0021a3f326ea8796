"""The warehouse: ``python -m demo.warehouse.service PORT DATABASE`` accepts rows by HTTP and stores them in SQLite.

It does not use anything of the product. A bridge may send a batch again if it did not get the response: rows are stored
under their offset in the bridge's queue, so repeated rows are recognised.
"""

from __future__ import annotations

import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Final

import msgspec

_COLUMNS: Final = "queue text, place integer, topic text, message text, primary key (queue, place)"


class Row(msgspec.Struct):
    """One row of a request's body."""

    place: int
    topic: str
    message: str


class Warehouse(ThreadingHTTPServer):
    """The service.

    Args:
        port: Port on the loopback interface.
        path: Path of the database.
    """

    daemon_threads = True

    def __init__(self, port: int, path: str) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma synchronous = full")
        self._database.execute(f"create table if not exists messages ({_COLUMNS})")
        self._lock = Lock()

    def keep(self, queue: str, rows: list[Row]) -> None:
        """Store rows; returns when they are durable."""
        with self._lock, self._database:
            self._database.executemany(
                "insert or ignore into messages values (?, ?, ?, ?)",
                [(queue, row.place, row.topic, row.message) for row in rows],
            )


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Warehouse

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        try:
            rows = msgspec.json.decode(body, type=list[Row])
        except msgspec.DecodeError as error:
            self._answer(400, str(error).encode())
            return
        self.server.keep(self.headers.get("Journal-Queue", ""), rows)
        self._answer(200)

    def do_HEAD(self) -> None:
        self._answer(200)

    do_OPTIONS = do_HEAD  # noqa: N815  its base class has it so

    def log_message(self, *_values: object) -> None:
        """Do not log each request."""

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main(arguments: list[str]) -> None:
    """Serve until killed; prints ``ready`` first."""
    port, path = arguments
    service = Warehouse(int(port), path)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    service.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
