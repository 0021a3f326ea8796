"""How cost grows with shards, connections, sessions and the like: curves of points, and the law of each."""

__all__: list[str] = []
