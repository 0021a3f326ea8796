"""An MQTT broker that keeps nothing: messages, sessions and wills lie in the store behind the storage adapter."""

__all__: list[str] = []
