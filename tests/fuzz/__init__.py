"""Fuzzing of everything that decodes bytes from outside or from a disk; see docs/operations.md and `make fuzz`."""
