"""Checking a data directory offline: every checksum and invariant, without changing any data.

The result is a value (`Report`), not an error. The parts are `journal_files`, `log_files`, `views` and `directory`,
which combines them.
"""

from journal.check.directory import check_directory
from journal.check.report import Finding, Report

__all__ = ["Finding", "Report", "check_directory"]
