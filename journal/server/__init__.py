"""The journal server: TCP, WebSocket and HTTP in front of an engine."""

from journal.server.process import run_server
from journal.server.server import Server

__all__ = ["Server", "run_server"]
