"""What is told of a run: the table, what Spark finds in the history, the verdict."""

__all__: list[str] = []
