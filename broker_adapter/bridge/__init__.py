"""Bridges: they send the records of cache queues to sinks; see `driver`."""

__all__: list[str] = []
