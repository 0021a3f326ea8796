"""Cache queues and bridges: what buffering while a sink is out costs, and how fast each kind of sink drains a queue."""

__all__: list[str] = []
