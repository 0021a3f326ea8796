"""Other servers, for comparison: each with the smallest generator that loads it as much as is fair."""

__all__: list[str] = []
