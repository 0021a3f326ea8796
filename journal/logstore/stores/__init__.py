"""The systems that a log can lie in, one module each: memory, a directory, an object store, PostgreSQL."""

__all__: list[str] = []
