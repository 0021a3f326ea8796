"""Bridges: they bring what waits in cache queues to sinks; see `driver`."""
