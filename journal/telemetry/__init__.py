"""Observing a running engine: what it holds, and how late its event loop is. Nothing here changes it."""

__all__: list[str] = []
