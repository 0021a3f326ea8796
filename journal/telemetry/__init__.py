"""Looking at a running engine from beside it: what it holds, and whether its loop keeps up. Nothing here changes it."""

__all__: list[str] = []
