"""A signal that comes while a program is still importing its modules is handled as soon as it is ready.

SIGTERM ended a broker with the status of a crash in its first half second, and SIGHUP ended it, too: after
`systemctl reload` in that moment it stayed down.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.ports import free_port

# Sends the signal to itself at the moment when the first of the large modules is looked for.
START = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "trio":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), number)

number = signal.Signals[sys.argv.pop()]
sys.meta_path.insert(0, Finder())
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""
BROKER = "broker_adapter.mqtt.cli.main"
BRIDGE = """
[broker]
store = "journal://127.0.0.1:{port}"
[[bridge]]
name = "b"
topics = ["#"]
[bridge.sink]
type = "http"
url = "http://127.0.0.1:{port}/"
"""


def command(program: str, directory: Path) -> list[str]:
    """A program without a store: it waits for one, so nothing else ends it."""
    port = free_port()
    store = ["--store", f"journal://127.0.0.1:{port}", "--listen", "127.0.0.1:0"]
    config = directory / "broker.toml"
    config.write_text(BRIDGE.format(port=port))
    return {
        "server": ["journal.cli.main", "serve", "--data", str(directory / "data"), "--listen", "127.0.0.1:0"],
        "broker": [BROKER, "serve", *store],
        "broker without a command": [BROKER, *store],
        "several processes": [BROKER, *store, "--processes", "2"],
        "bridge": [BROKER, "bridge", "--config", str(config)],
    }[program]


def start(program: str, number: signal.Signals, directory: Path) -> subprocess.Popen[bytes]:
    log = (directory / "log").open("wb")
    with log:
        return subprocess.Popen(
            [sys.executable, "-c", START, *command(program, directory), number.name], stdout=log, stderr=log
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", ["server", "broker", "broker without a command", "several processes", "bridge"])
def test_a_program_that_is_stopped_while_it_starts_ends_in_order(
    tmp_path: Path, program: str, number: signal.Signals
) -> None:
    process = start(program, number, tmp_path)
    assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()


@pytest.mark.parametrize("program", ["server", "broker", "several processes"])
def test_a_program_that_is_to_reload_while_it_starts_goes_on(tmp_path: Path, program: str) -> None:
    process = start(program, signal.SIGHUP, tmp_path)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
