"""Listening, TLS, protocol sniffing, and additions to the WebSocket library."""

__all__: list[str] = []
