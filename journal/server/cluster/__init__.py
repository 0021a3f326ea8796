"""Several servers of one store: which of them owns it, and what the others do meanwhile."""

__all__: list[str] = []
