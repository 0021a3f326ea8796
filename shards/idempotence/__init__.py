"""Idempotent producers: what a shard remembers of them, and what is done with a batch that comes again."""

__all__: list[str] = []
