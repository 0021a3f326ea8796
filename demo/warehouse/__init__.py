"""The place outside that a bridge brings messages to: a small web service with a database of its own."""

__all__: list[str] = []
