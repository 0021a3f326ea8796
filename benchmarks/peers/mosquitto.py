"""Mosquitto, with persistence on: it writes sessions and messages to its file at intervals, not synced."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import processes

CONFIG = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {data}/
max_queued_messages 0
"""
# Everything published at the first broker is forwarded to the second.
BRIDGE = """\
connection across
address 127.0.0.1:{port}
topic # out 1
bridge_protocol_version mqttv311
notifications false
"""


class Mosquitto:
    """A running mosquitto.

    Args:
        directory: Empty directory for its data and log.
        bridge_to: Another broker that gets all messages.

    Raises:
        processes.NotInstalledError: No mosquitto on this machine.
    """

    def __init__(self, directory: Path, *, bridge_to: tuple[str, int] | None = None) -> None:
        program = processes.installed("mosquitto")
        port = processes.free_port()
        data = directory.resolve() / "data"
        data.mkdir(parents=True)
        config = CONFIG.format(port=port, data=data)
        if os.getuid() == 0:
            # Otherwise it would switch to a user without write permission there.
            config += "user root\n"
        if bridge_to is not None:
            config += BRIDGE.format(port=bridge_to[1])
        config_path = directory / "mosquitto.conf"
        config_path.write_text(config)
        self.server = processes.start_listening([program, "-c", str(config_path)], port, directory / "log")

    def close(self) -> None:
        self.server.stop()
