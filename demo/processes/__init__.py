"""Server, brokers and warehouse: processes that are started, killed and restarted by handle, never by name."""

from demo.processes.broker import Broker
from demo.processes.ports import free_port
from demo.processes.server import Server
from demo.processes.warehouse import WarehouseService

__all__ = ["Broker", "Server", "WarehouseService", "free_port"]
