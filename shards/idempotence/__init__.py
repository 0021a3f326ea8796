"""Idempotent producers: their state in a shard, and how repeated batches are handled."""

__all__: list[str] = []
