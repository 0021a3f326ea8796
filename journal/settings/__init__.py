"""Settings: types of values, reading them from files, the settings of the server and of access control."""

__all__: list[str] = []
