"""An MQTT broker without storage of its own: messages, sessions and wills are in the store of the storage adapter."""

__all__: list[str] = []
