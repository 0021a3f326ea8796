"""Engines of the storage adapter, one module each; `broker_adapter.open_adapter` imports them on first use."""

__all__: list[str] = []
