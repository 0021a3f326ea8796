"""Listeners and byte streams: TCP, TLS and WebSocket, and sending with bounds."""

__all__: list[str] = []
