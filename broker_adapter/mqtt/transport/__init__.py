"""Listeners and byte streams (TCP, TLS and WebSocket), and buffered output with limits."""

__all__: list[str] = []
