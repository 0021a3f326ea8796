"""The journal server: TCP, WebSocket and HTTP in front of an engine."""

from journal.server.server import Server, run_server

__all__ = ["Server", "run_server"]
