"""Server processes for the fault tests: start one, see it refuse to start, talk to it, end it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from journal.cli.main import run
from journal.protocol import FrameParser, Op, decode_error, decode_reply, encode, frames, messages
from shards.format.batch import encode_values, read_records
from shards.format.record import StoredRecord
from shards.model import ShardConfig
from tests.patience import PATIENCE_S

SERVE = [sys.executable, "-m", "journal.cli.main", "serve"]
SETTINGS = (
    "listen.tcp=127.0.0.1:0",
    "listen.websocket=",
    "listen.http=127.0.0.1:0",
    "storage.journal_file_bytes=2 MiB",
    "storage.journal_budget_bytes=8 MiB",
    "limits.max_batch_bytes=1 MiB",
    "limits.max_frame_bytes=2 MiB",
    "storage.disk_reserve_bytes=0",
)


def command(data: Path, *settings: str) -> list[str]:
    options = [option for setting in merged(settings) for option in ("--set", setting)]
    return [*SERVE, "--data", str(data), *options]


def merged(settings: Sequence[str]) -> list[str]:
    """The settings given here win over the small ones of all tests."""
    return [f"{name}={value}" for name, _, value in (text.partition("=") for text in _last((*SETTINGS, *settings)))]


def _last(settings: Sequence[str]) -> list[str]:
    return list({setting.partition("=")[0]: setting for setting in settings}.values())


def refusal(data: Path, *settings: str, extra: Sequence[str] = ()) -> str:
    """What the server says when it does not start: one line, exit status 1, no traceback."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        # In this process: starting Python and importing everything takes longer than all the rest.
        status = run([*command(data, *settings)[len(SERVE) - 1 :], *extra])
    assert status in (1, 78), (status, errors.getvalue())
    assert out.getvalue() == ""
    assert "Traceback" not in errors.getvalue(), errors.getvalue()
    lines = [line for line in errors.getvalue().splitlines() if line.startswith("journal: ")]
    assert len(lines) == 1, errors.getvalue()
    return lines[0]


@attrs.define
class ServerProcess:
    """A running server.

    Attributes:
        pid: Of the server itself, also where another program runs it.
    """

    process: subprocess.Popen[str]
    log: Path
    ports: dict[str, int]
    pid: int

    def http(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['http']}{path}", timeout=PATIENCE_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    @contextmanager
    def client(self) -> Iterator[Client]:
        with socket.create_connection(("127.0.0.1", self.ports["tcp"]), timeout=PATIENCE_S) as sock:
            yield Client(sock)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


@contextmanager
def running(data: Path, *settings: str, under: Sequence[str] = ()) -> Iterator[ServerProcess]:
    """A server on a data directory; it is killed at the end if it still runs."""
    log = data.parent / f"{data.name}.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*under, *command(data, *settings)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout
        readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if readable else ""
        assert line.startswith("ready"), f"{line!r}; {log.read_text()}"
        ports = {name: int(port) for name, port in re.findall(r"(\w+)=[^ ]*:(\d+)", line)}
        yield ServerProcess(process, log, ports, int((data / "LOCK").read_text()))
    finally:
        if process.poll() is None:
            if under:
                # What runs the server does not take it along when it is killed.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int((data / "LOCK").read_text()), signal.SIGKILL)
            process.kill()
            process.wait(PATIENCE_S)
        assert process.stdout
        process.stdout.close()


class Client:
    """A blocking client: frames out, frames in, one thing at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._parser = FrameParser(64 << 20)
        self._correlation = 0
        self.call(Op.HELLO, messages.HelloRequest(frames.PROTOCOL_VERSION, "faults"))

    def next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def receive(self) -> tuple[int, int, int, bytes]:
        """(op, status, correlation, body) of the next frame.

        Raises:
            EOFError: The server closed the connection.
        """
        while True:
            for frame in self._parser:
                return frame.op, frame.status, frame.correlation, bytes(frame.body)
            data = self.sock.recv(65536)
            if not data:
                raise EOFError("the server closed the connection")
            self._parser.feed(data)

    def reply_to(self, correlation: int) -> bytes:
        while True:
            _, status, found, body = self.receive()
            if found == correlation:
                if status:
                    raise decode_error(status, body)
                return body

    def call(self, op: Op, message: object) -> object:
        correlation = self.next_correlation()
        self.sock.sendall(frames.build(op, correlation, encode(message)))
        return decode_reply(op, self.reply_to(correlation))

    def open(self, name: str, config: ShardConfig | None = None) -> int:
        reply = self.call(Op.OPEN_SHARD, messages.OpenShardRequest(name, config))
        assert isinstance(reply, messages.OpenShardReply)
        return reply.handle

    def append(self, handle: int, *values: bytes) -> int:
        """Base offset, once it is acknowledged.

        Raises:
            StorageError: It was refused.
            EOFError: The connection ended first.
        """
        correlation = self.next_correlation()
        self.sock.sendall(frames.build_append(correlation, handle, encode_values(values, timestamp_us=1_000)))
        while True:
            op, status, found, body = self.receive()
            if op == Op.APPEND and found == correlation:
                raise decode_error(status, body)
            if op == Op.APPENDED:
                for ack in frames.read_acks(body):
                    if ack[0] == correlation:
                        return ack[4]

    def read(self, handle: int, offset: int = 0) -> list[bytes]:
        """All values from an offset on.

        Raises:
            BatchError: What came is not what was written.
        """
        values: list[bytes] = []
        while True:
            correlation = self.next_correlation()
            self.sock.sendall(frames.build_fetch(correlation, handle, offset, 1 << 20, 0))
            reply = frames.read_fetch_reply(self.reply_to(correlation))
            if not len(reply.batches):
                return values
            found = read_records(reply.batches, start_offset=offset)
            values.extend(record.value for record in found if isinstance(record, StoredRecord))
            offset = reply.next_offset
