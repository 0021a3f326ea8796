"""Runs the npm package ``mqtt``: one process of Node.js that holds any number of clients."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.mqtt.clients.install import node
from tests.patience import PATIENCE_S

HERE = Path(__file__).parent


class NpmClients:
    """The process. Get one from `running_npm_clients`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.events: list[dict[str, Any]] = []
        self._process = process
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._changed = threading.Condition()

    def call(self, command: str, name: str, **given: Any) -> dict[str, Any]:
        """Give a command and wait for its outcome."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, "name": name, **given}) + "\n")
        self._process.stdin.flush()
        answer = self._answers.get(timeout=PATIENCE_S)
        assert answer["event"] == "done", answer
        return answer

    def wait_events(self, kind: str, name: str, count: int) -> list[dict[str, Any]]:
        """Wait for so many events of one kind at one client; all of them."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.events if (each["event"], each["name"]) == (kind, name)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, PATIENCE_S), (name, self.events)
            return found()

    def listen(self) -> None:
        """Take in what it says until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said["event"] in {"done", "failed"}:
                self._answers.put(said)
                continue
            with self._changed:
                self.events.append(said)
                self._changed.notify_all()


@contextmanager
def running_npm_clients() -> Iterator[NpmClients]:
    """A process for the length of a block."""
    program = node()
    assert program is not None
    with subprocess.Popen(
        [program, str(HERE / "npm_client.js")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
    ) as process:
        clients = NpmClients(process)
        listening = threading.Thread(target=clients.listen)
        listening.start()
        try:
            yield clients
        finally:
            process.kill()
            listening.join()
