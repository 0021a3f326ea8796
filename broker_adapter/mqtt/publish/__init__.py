"""What a PUBLISH goes through until it is acknowledged."""

__all__: list[str] = []
