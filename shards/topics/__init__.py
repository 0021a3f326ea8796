"""Names of shards and topic filters, and finding what matches."""

__all__: list[str] = []
