"""The result of a check: counts, damages, and notes on unusual but valid findings."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs

from shards.quantities import counted, format_size

Progress = Callable[[int], None]

MOST_FINDINGS = 10_000
"""Largest number of damages and of notes; a badly damaged directory must not fill the memory."""


@attrs.frozen(slots=True)
class Finding:
    """A finding at a position of a file; for the views the path is that of their store and the position 0."""

    path: str
    position: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.problem}"


@attrs.define(slots=True)
class Counts:
    """How much was checked."""

    bytes_read: int = 0
    journal_files: int = 0
    groups: int = 0
    entries: int = 0
    shards: int = 0
    segments: int = 0
    sealed_segments: int = 0
    batches: int = 0
    records: int = 0
    index_entries: int = 0
    cursors: int = 0
    state_values: int = 0
    producers: int = 0
    indexed_words: int = 0


@attrs.define(slots=True)
class Report:
    """The result of a check.

    Attributes:
        directory: The data directory.
        counts: How much was checked.
        damages: Stored bytes that differ from what was written, or break an invariant.
        notes: Findings that are not damage: a torn last write, files that no record refers to.
        left_out: Damages and notes beyond `MOST_FINDINGS` of each, which are only counted.
    """

    directory: str
    counts: Counts = attrs.Factory(Counts)
    damages: list[Finding] = attrs.Factory(list)
    notes: list[Finding] = attrs.Factory(list)
    left_out: int = 0

    def damage(self, path: str, position: int, problem: str) -> None:
        """Add a damage."""
        self._add(self.damages, Finding(path, position, problem))

    def note(self, path: str, position: int, problem: str) -> None:
        """Add a note."""
        self._add(self.notes, Finding(path, position, problem))

    def _add(self, findings: list[Finding], finding: Finding) -> None:
        if len(findings) < MOST_FINDINGS:
            findings.append(finding)
        else:
            self.left_out += 1

    @property
    def summary(self) -> str:
        """One line of text."""
        counts = self.counts
        found = counted(len(self.damages), "damage") if self.damages else "no damage"
        more = f" ({counted(self.left_out, 'finding')} not listed)" if self.left_out else ""
        return (
            f"{self.directory}: {found}, {counted(len(self.notes), 'note')}{more}; read "
            f"{format_size(counts.bytes_read)}: "
            f"{counted(counts.entries, 'entry', 'entries')} in {counted(counts.journal_files, 'journal file')}, "
            f"{counted(counts.batches, 'batch', 'batches')} with {counted(counts.records, 'record')} in "
            f"{counted(counts.segments, 'segment')} ({counts.sealed_segments:,} sealed) of "
            f"{counted(counts.shards, 'shard')}"
        )


def place_in(path: str, problem: str) -> tuple[int, str]:
    """Position and text of a message that begins with the path and perhaps the position."""
    match = re.fullmatch(re.escape(path) + r"(?: at byte (\d+))?: (.*)", problem, re.DOTALL)
    return (int(match[1] or 0), match[2]) if match is not None else (0, problem)
