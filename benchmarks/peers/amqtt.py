"""amqtt, an MQTT broker in Python (asyncio). All is in memory, and nothing is synced: it has no setting for that.

What a session that was away gets from it is marked as retained messages, and comes one after the other. So this is not
compared.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benchmarks import processes

# The file that comes with it, but for the address (it would listen on all interfaces), and that clients need a user
# name: it stores no messages for anonymous ones that are away.
CONFIG: Final = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
plugins:
  amqtt.plugins.logging_amqtt.EventLoggerPlugin:
  amqtt.plugins.logging_amqtt.PacketLoggerPlugin:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: false
  amqtt.plugins.sys.broker.BrokerSysPlugin:
    sys_interval: 20
"""


class Amqtt:
    """A running broker.

    Args:
        directory: Empty directory for its configuration and log.

    Raises:
        processes.NotInstalledError: amqtt is not installed.
    """

    def __init__(self, directory: Path) -> None:
        if not (processes.PEERS / "amqtt").is_dir():
            raise processes.NotInstalledError("not installed: make peers")
        directory.mkdir(parents=True)
        port = processes.free_port()
        config_path = directory / "amqtt.yaml"
        config_path.write_text(CONFIG.format(port=port))
        packages = os.pathsep.join(filter(None, (str(processes.PEERS), os.environ.get("PYTHONPATH", ""))))
        self.server = processes.start_listening(
            processes.python_module("amqtt.scripts.broker_script", "-c", str(config_path.resolve())),
            port,
            directory / "log",
            cwd=directory,
            environment={"PYTHONPATH": packages},
        )

    def close(self) -> None:
        self.server.stop()
