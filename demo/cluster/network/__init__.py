"""The hosts of the servers, each of which can be cut from the network: namespaces of Linux, or relays."""

__all__: list[str] = []
