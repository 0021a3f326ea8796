"""Values of MQTT that the other packages of the broker share: messages, topics, subscriptions, limits, errors. Pure."""

__all__: list[str] = []
