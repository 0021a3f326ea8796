"""The console: a web page about this node, served at `/` of its HTTP listener; `docs/console.md`."""

from journal.server.console.pages import console_routes

__all__ = ["console_routes"]
