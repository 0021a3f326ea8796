"""The `journal-spark` command."""
