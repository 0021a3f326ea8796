"""An MQTT broker on the server."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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

# All of it is also forwarded to the warehouse; while that is out, messages wait in files.
[[bridge]]
name = "{bridge}"
topics = ["{topics}"]
fields = {{ place = "offset", topic = "topic", message = "text" }}
max_backoff_s = 1

[bridge.sink]
type = "http"
url = "{warehouse_url}"
"""

BRIDGE: Final = "warehouse"
"""Name of the bridge and of its queue."""


class Broker(AnnouncingProcess):
    """One broker.

    Args:
        name: Its id.
        store_url: URL of the server.
        port: Port on which it accepts clients.
        topics: Filter of the topics that it forwards to the warehouse.
        memory_topics: Topics whose messages are kept in memory.
        warehouse_url: URL of the bridge's sink.
        directory: Directory of its configuration and its log.
    """

    def __init__(
        self,
        name: str,
        store_url: str,
        port: int,
        *,
        topics: str,
        memory_topics: str,
        warehouse_url: str,
        directory: Path,
    ) -> None:
        config = directory / f"{name}.toml"
        config.write_text(
            _CONFIG.format(
                name=name,
                store_url=store_url,
                port=port,
                topics=topics,
                memory_topics=memory_topics,
                bridge=BRIDGE,
                warehouse_url=warehouse_url,
            )
        )
        arguments = ["--config", str(config)]
        super().__init__(name, "broker_adapter.mqtt.cli.main", arguments, directory / f"{name}.log")
        self.port = port
