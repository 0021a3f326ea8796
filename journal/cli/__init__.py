"""The command line: one module for each command; it imports what it needs when it runs, so that `--help` is fast."""

__all__: list[str] = []
