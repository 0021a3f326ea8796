"""Subscriptions to a shard, to a topic filter, and of a group of members."""

__all__: list[str] = []
