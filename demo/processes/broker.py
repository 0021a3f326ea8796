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
"""

_WAREHOUSE = """
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


def warehouse_rules(topics: str, memory_topics: str, url: str) -> str:
    """What brokers do with messages beyond storing them, as a part of their configuration.

    Args:
        topics: Filter of the topics that they forward to the warehouse.
        memory_topics: Topics whose messages are kept in memory.
        url: URL of the bridge's sink.
    """
    return _WAREHOUSE.format(bridge=BRIDGE, topics=topics, memory_topics=memory_topics, warehouse_url=url)


class Broker(AnnouncingProcess):
    """One broker.

    Args:
        name: Its id.
        store_url: URL of the server, or of all servers of a cluster.
        port: Port on which it accepts clients.
        directory: Directory of its configuration and its log.
        rules: Further sections of its configuration.
    """

    def __init__(self, name: str, store_url: str, port: int, *, directory: Path, rules: str = "") -> None:
        config = directory / f"{name}.toml"
        config.write_text(_CONFIG.format(name=name, store_url=store_url, port=port) + rules)
        arguments = ["--config", str(config)]
        super().__init__(name, "broker_adapter.mqtt.cli.main", arguments, directory / f"{name}.log")
        self.port = port
