"""The way of a PUBLISH from its receipt to its acknowledgement."""

__all__: list[str] = []
