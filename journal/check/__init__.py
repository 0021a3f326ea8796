"""Checking a data directory offline: every checksum and invariant, without changing anything that counts.

What is found is a value (`Report`), not an error. The parts: `journal_files`, `log_files`, `views` and, which puts them
together, `directory`.
"""

from journal.check.directory import check_directory
from journal.check.report import Finding, Report

__all__ = ["Finding", "Report", "check_directory"]
