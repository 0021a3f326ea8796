"""`journal queue ...`: cache queues as operators see and change them. One module a command; nothing is decided here."""

__all__: list[str] = []
