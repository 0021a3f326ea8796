"""History in Spark: a data source for reading shards, a plain scan of sealed segments, and exports."""
