"""The shared files as one Delta table: its log, in the plain form of the protocol that every reader knows."""

__all__: list[str] = []
