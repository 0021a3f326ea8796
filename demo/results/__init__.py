"""Output of a run: the table, the figures of Spark, the verdict."""

__all__: list[str] = []
