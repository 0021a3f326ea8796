"""A journal server and brokers on it as processes: started on loopback, killed, started again, ended by their handles.

Where the environment says ``MQTT_TESTS_AGAINST=mosquitto`` one mosquitto is used in place of all brokers. That shows
that a test is right, not that the product is: what mosquitto lacks is skipped there. ``MQTT_TESTS_AGAINST=memory:``
(or the URL of another store) uses one broker of ours in place of all: what goes wrong there has nothing to do with
the server.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from tests.patience import PATIENCE_S
from tests.ports import free_port

REPOSITORY = Path(__file__).parents[3]
STAND_IN = os.environ.get("MQTT_TESTS_AGAINST", "")
USES_MOSQUITTO = STAND_IN == "mosquitto"
NEEDS_CLUSTER = pytest.mark.skipif(bool(STAND_IN), reason="one broker stands for all: none is left when it is killed")

BROKER = ("broker_adapter.mqtt.cli.main",)

JOURNAL = """\
[listen]
tcp = "127.0.0.1:{port}"
websocket = ""
http = ""
[storage]
journal_file_bytes = "16 MiB"
journal_budget_bytes = "64 MiB"
disk_reserve_bytes = 0
"""

MOSQUITTO = """\
listener {port} 127.0.0.1
listener {websocket_port} 127.0.0.1
protocol websockets
allow_anonymous true
max_queued_messages 0
persistence false
"""


class Process:
    """One server process that may be ended and started again with the same command.

    Attributes:
        ports: Where it listens, by the words of its ``ready`` line.
    """

    def __init__(self, argv: Sequence[str], log: Path, ports: dict[str, int] | None = None) -> None:
        self.ports = ports or {}
        self._argv = argv
        self._log = log
        self._announces = ports is None
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Of the process that ended by itself; None if it runs, was ended or never started."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def freeze(self) -> None:
        """Freeze it: its connections stay open, and nothing answers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Start it and return when it is ready."""
        assert not self.is_running
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._announces else log,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
            )
        if self._announces:
            self._read_ready_line(self._process)
        else:
            self._wait_until_it_accepts(self._process)

    def end(self, how: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit status, 0 if it was not running."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:
            process.send_signal(how)
            return process.wait(PATIENCE_S)

    def _read_ready_line(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if readable else ""
        assert line.startswith("ready"), f"{line!r}; {self.log_text[-2000:]}"
        self.ports = {name: int(port) for name, port in re.findall(r"(\w+)=[^ ]*:(\d+)", line)}

    def _wait_until_it_accepts(self, process: subprocess.Popen[str]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        for port in self.ports.values():
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, self.log_text[-2000:]
                    assert time.monotonic() < give_up_at, self.log_text[-2000:]
                    time.sleep(0.01)


@attrs.define
class Cluster:
    """Brokers, and the journal server that they share (None with mosquitto)."""

    server: Process | None
    brokers: list[Process]

    def port(self, number: int) -> int:
        """Where broker ``number`` speaks MQTT."""
        return self.brokers[number].ports["mqtt"]

    def websocket_port(self, number: int) -> int:
        return self.brokers[number].ports["websocket"]

    @property
    def mqtt_ports(self) -> list[int]:
        return [broker.ports["mqtt"] for broker in self.brokers]


@contextmanager
def running_cluster(
    directory: Path,
    *,
    brokers: int = 3,
    store_port: int = 0,
    by_way_of: Sequence[int] = (),
    settings: str = "",
    program: Sequence[str] = BROKER,
) -> Iterator[Cluster]:
    """A cluster for the length of a block. Everything is ended by SIGTERM at its end, and must obey.

    Args:
        store_port: Of the store, if it is not to be any that is free.
        by_way_of: Port by which each broker reaches the store, if it is not to go straight to it.
        settings: More lines of each broker's configuration.
        program: A module that starts a broker, and arguments before the broker's own.
    """
    if USES_MOSQUITTO:
        cluster = _mosquitto(directory, brokers)
    elif STAND_IN:
        alone = Process(broker_command(directory, "alone", STAND_IN), directory / "alone.log")
        cluster = Cluster(None, [alone] * brokers)
    else:
        cluster = _ours(directory, brokers, store_port or free_port(), by_way_of, settings, program)
    processes = [*cluster.brokers, *([cluster.server] if cluster.server else [])]
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.end, signal.SIGKILL)
        for process in reversed(processes):
            if not process.is_running:
                process.start()
        yield cluster
        statuses = [process.end(signal.SIGTERM) for process in dict.fromkeys(processes)]
        assert set(statuses) <= {0}, f"{statuses}: {[process.log_text[-1000:] for process in processes]}"


def _ours(
    directory: Path, count: int, port: int, by_way_of: Sequence[int], settings: str, program: Sequence[str]
) -> Cluster:
    server = journal_server(directory, port)
    brokers: list[Process] = []
    for number, store_port in zip(range(count), by_way_of or [port] * count, strict=True):
        command = broker_command(directory, f"broker-{number}", f"journal://127.0.0.1:{store_port}", settings, program)
        brokers.append(Process(command, directory / f"broker-{number}.log"))
    return Cluster(server, brokers)


def journal_server(directory: Path, port: int) -> Process:
    """The journal server of a directory, not started; it comes back on the same port with the same data."""
    config = directory / "journal.toml"
    config.write_text(JOURNAL.format(port=port))
    return Process(
        [*_module("journal.cli.main", "serve"), "--data", str(directory / "data"), "--config", str(config)],
        directory / "journal.log",
    )


def broker_command(
    directory: Path, broker_id: str, store: str, settings: str = "", program: Sequence[str] = BROKER
) -> list[str]:
    """The command of one broker, on ports that stay the same when it is started again."""
    config = directory / f"{broker_id}.toml"
    config.write_text(f"""\
[broker]
id = "{broker_id}"
store = "{store}"
sys_interval_s = 1
[listen]
mqtt = "127.0.0.1:{free_port()}"
websocket = "127.0.0.1:{free_port()}"
[access]
anonymous = true
{settings}""")
    return [*_module(*program), "--config", str(config)]


def _mosquitto(directory: Path, count: int) -> Cluster:
    program = shutil.which("mosquitto", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("mosquitto is not installed")
    ports = {"mqtt": free_port(), "websocket": free_port()}
    config = directory / "mosquitto.conf"
    config.write_text(MOSQUITTO.format(port=ports["mqtt"], websocket_port=ports["websocket"]))
    process = Process([program, "-c", str(config)], directory / "mosquitto.log", ports)
    return Cluster(None, [process] * count)


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]
