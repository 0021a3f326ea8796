"""A shard and the segments that it consists of: their files, names, indexes and retention."""

__all__: list[str] = []
