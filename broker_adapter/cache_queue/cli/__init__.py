"""`journal queue ...`: commands to show and change cache queues. One module per command, without logic of their own."""

__all__: list[str] = []
