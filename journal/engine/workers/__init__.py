"""Processes beside an engine, for work that would keep its event loop waiting."""

__all__: list[str] = []
