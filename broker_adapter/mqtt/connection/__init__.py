"""One client's connection, from CONNECT to its end: packets in, answers out."""

__all__: list[str] = []
