"""What subscriptions consist of, without an event loop: events, fair queues, watermarks, groups."""

__all__: list[str] = []
