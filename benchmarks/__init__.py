"""Measurements, compared with other servers and with the limits of the machine: `python -m benchmarks`."""

__all__: list[str] = []
