"""Measurements next to peers and to the limits of the machine: `python -m benchmarks`, see docs/benchmarks.md."""

__all__: list[str] = []
