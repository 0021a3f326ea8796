"""The JSON sub-protocol of the WebSocket listener, for browsers and scripts: `docs/json-protocol.md`."""

from journal.server.json_protocol.connection import JsonConnection
from journal.server.json_protocol.messages import SUBPROTOCOL
from journal.server.json_protocol.operations import JsonOperations

__all__ = ["SUBPROTOCOL", "JsonConnection", "JsonOperations"]
