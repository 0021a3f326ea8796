"""Listening, TLS, telling protocols apart, and what WebSocket needs beyond its library."""

__all__: list[str] = []
