"""Subscriptions to a shard, to a topic filter, and of a group of members."""
