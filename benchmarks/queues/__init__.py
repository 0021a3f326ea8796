"""Cache queues and bridges: the cost of queueing while a sink is out, and how fast each kind of sink drains a queue."""

__all__: list[str] = []
