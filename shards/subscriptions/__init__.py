"""What subscriptions consist of, without an event loop: events, fair queues, watermarks, groups."""
