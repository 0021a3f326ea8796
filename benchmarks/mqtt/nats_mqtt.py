"""NATS as an MQTT broker: JetStream stores sessions and messages in files.

By default they are synced every two minutes; with ``sync_interval: always`` before each acknowledgement.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import processes
from benchmarks.load import LoadError
from benchmarks.mqtt.connection import Connection
from benchmarks.peers.nats import SYNC_ALWAYS

# Most unacknowledged messages of a consumer; the default of 100 is too low to drain a queue fast. All consumers of a
# session together may have 65,535, and a filter that ends in # takes two.
MOST_UNACKNOWLEDGED = 30_000
READY_TIMEOUT_S = 30.0

CONFIG = """\
listen: 127.0.0.1:{port}
server_name: {name}
jetstream {{ store_dir: "{data}"{sync} }}
mqtt {{ listen: 127.0.0.1:{mqtt_port}, max_ack_pending: {most}, stream_replicas: 1, consumer_replicas: 1 }}
"""
CLUSTER = """\
cluster {{ name: bench, listen: 127.0.0.1:{port}, routes: [{routes}] }}
"""


class NatsMqtt:
    """A nats-server with an MQTT listener, or several in a cluster.

    Args:
        directory: Empty directory for data and logs.
        nodes: Number of servers. They share the stored messages, with one copy of each.
        synced: They sync each write to a file before they acknowledge.

    Raises:
        processes.NotInstalledError: No nats-server on this machine.
    """

    def __init__(self, directory: Path, *, nodes: int = 1, synced: bool = False) -> None:
        program = processes.installed("nats-server")
        directory.mkdir(parents=True, exist_ok=True)
        routes = [processes.free_port() for _ in range(nodes)]
        self.servers: list[processes.Server] = []
        try:
            for number, route in enumerate(routes):
                mqtt_port = processes.free_port()
                config = CONFIG.format(
                    port=processes.free_port(),
                    name=f"n{number}",
                    data=(directory / f"data-{number}").resolve(),
                    mqtt_port=mqtt_port,
                    most=MOST_UNACKNOWLEDGED,
                    sync=SYNC_ALWAYS if synced else "",
                )
                if nodes > 1:
                    config += CLUSTER.format(
                        port=route, routes=", ".join(f"nats://127.0.0.1:{each}" for each in routes)
                    )
                config_path = directory / f"{number}.conf"
                config_path.write_text(config)
                log_path = directory / f"log-{number}"
                self.servers.append(processes.start_listening([program, "-c", str(config_path)], mqtt_port, log_path))
            for number, server in enumerate(self.servers):
                _wait_until_it_serves(server, f"ready-{number}")
        except processes.ProcessError:
            self.close()
            raise

    def close(self) -> None:
        for server in self.servers:
            server.stop()


def _wait_until_it_serves(server: processes.Server, client_id: str) -> None:
    """Wait for the cluster: it accepts connections before it has elected a leader, and refuses requests until then."""
    give_up_at = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            with Connection(server.address, client_id) as connection:
                connection.disconnect()
                return
        except (LoadError, OSError) as error:
            if time.monotonic() > give_up_at:
                raise processes.ProcessError(f"nats-server serves no MQTT; see {server.log_path}") from error
            time.sleep(0.1)
