"""Subscriptions to a shard, to a topic filter, and group subscriptions."""

__all__: list[str] = []
