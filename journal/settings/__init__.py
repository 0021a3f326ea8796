"""Settings: kinds of values, reading them from files, those of the server and of access control."""

__all__: list[str] = []
