"""One client's connection, from CONNECT to its end: packets from the client, and the answers to them."""

__all__: list[str] = []
