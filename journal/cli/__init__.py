"""The command line. One module a command; each imports what it needs when it runs, so that `--help` stays quick."""

__all__: list[str] = []
