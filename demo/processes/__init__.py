"""Server and brokers: processes that are started, killed and started again by their handles, never by name."""

from demo.processes.broker import Broker
from demo.processes.ports import free_port
from demo.processes.server import Server

__all__ = ["Broker", "Server", "free_port"]
