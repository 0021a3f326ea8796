"""Common parts of the project's commands: errors in one line, data on stdout, and the same form of quantities."""

__all__: list[str] = []
