"""README and docs: every command, file and program of them runs, or is marked as what it is."""
