"""An MQTT broker on the server."""

from __future__ import annotations

from pathlib import Path

from demo.processes.process import AnnouncingProcess

_CONFIG = """\
[broker]
id = "{name}"
store = "{store_url}"

[listen]
mqtt = "127.0.0.1:{port}"

[access]
anonymous = true

# Every other topic of QoS 1 and 2 is in files, which is the default.
[[storage]]
topics = "{memory_topics}"
storage = "memory"
"""


class Broker(AnnouncingProcess):
    """One broker.

    Args:
        name: Its id.
        store_url: The server.
        port: Where it accepts.
        memory_topics: Topics whose messages are kept in memory.
        directory: Where its configuration and its log go.
    """

    def __init__(self, name: str, store_url: str, port: int, memory_topics: str, directory: Path) -> None:
        config = directory / f"{name}.toml"
        config.write_text(_CONFIG.format(name=name, store_url=store_url, port=port, memory_topics=memory_topics))
        arguments = ["--config", str(config)]
        super().__init__(name, "broker_adapter.mqtt.cli.main", arguments, directory / f"{name}.log")
        self.port = port
