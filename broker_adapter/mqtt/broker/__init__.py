"""A broker and what it consists of."""

__all__: list[str] = []
