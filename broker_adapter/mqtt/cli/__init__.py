"""The `journal-broker` command. One module a command; each imports what it needs when it runs."""

__all__: list[str] = []
