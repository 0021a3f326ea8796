"""Parts of subscriptions without an event loop: events, fair queues, watermarks, groups."""

__all__: list[str] = []
