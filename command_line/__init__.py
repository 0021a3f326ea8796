"""What the project's commands have in common: errors end as one line, data goes to stdout, quantities read alike."""

__all__: list[str] = []
