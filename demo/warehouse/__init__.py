"""The external sink of the bridge: a small web service with a database."""

__all__: list[str] = []
