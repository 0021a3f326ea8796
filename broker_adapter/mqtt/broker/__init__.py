"""A broker, and the creation of its parts from settings."""

__all__: list[str] = []
