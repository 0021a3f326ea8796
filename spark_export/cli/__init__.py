"""The `journal-spark` command."""

__all__: list[str] = []
