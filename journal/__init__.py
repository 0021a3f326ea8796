"""The journal engine: protocol, client, server, storage engine and command line of the storage service."""

__all__: list[str] = []
