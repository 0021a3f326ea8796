"""Names of shards and topic filters, and finding what matches."""
