"""Bridges: they send what waits in cache queues to sinks; see `driver`."""

__all__: list[str] = []
