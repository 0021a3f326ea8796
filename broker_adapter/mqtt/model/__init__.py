"""Values of MQTT that other packages share: messages, topics, subscriptions, limits, errors. Pure."""

__all__: list[str] = []
