"""Parts of shared files that a decision names and that their shards do not have yet.

A decision may name a hundred thousand parts, so they are put into the shards in many steps of the event loop. Whatever
else is decided about the segments of a shard comes after its parts, as in the journal: see `PendingParts.take_of`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import attrs

from journal.engine.wal.entry_payloads import ConvertedFile, ConvertedPart, FilesConverted, runs_of_parts


class Run(NamedTuple):
    """Parts of one shard that follow each other without a gap."""

    shard_id: int
    parts: list[ConvertedPart]
    files: tuple[ConvertedFile, ...]


def runs_of(decision: FilesConverted) -> Iterator[Run]:
    """All runs of a decision."""
    return (Run(shard_id, parts, decision.files) for shard_id, parts in runs_of_parts(decision.parts))


@attrs.define
class _Pending:
    """A decision of which some parts are pending.

    Attributes:
        runs: Those after the ones that were taken.
        early: Shards whose parts were taken before their turn.
    """

    decision: FilesConverted
    runs: Iterator[Run]
    early: set[int] = attrs.Factory(set)


class PendingParts:
    """Parts that are pending, in the order of the decisions."""

    def __init__(self) -> None:
        self._decisions: deque[_Pending] = deque()

    def __bool__(self) -> bool:
        return bool(self._decisions)

    def add(self, decision: FilesConverted) -> None:
        """Add the parts of a decision."""
        self._decisions.append(_Pending(decision, runs_of(decision)))

    def take_next(self) -> Run | None:
        """Remove and return the next run; None if nothing is pending."""
        while self._decisions:
            pending = self._decisions[0]
            for run in pending.runs:
                if run.shard_id not in pending.early:
                    return run
            self._decisions.popleft()
        return None

    def take_of(self, shard_id: int) -> Iterator[Run]:
        """Remove and yield the runs of one shard, before their turn.

        REQUIRES: putting parts into a shard that has them changes nothing: runs may be yielded that were taken before.
        """
        for pending in self._decisions:
            if shard_id in pending.early:
                continue
            pending.early.add(shard_id)
            parts = pending.decision.parts
            first = bisect_left(parts, shard_id, key=_shard_id)
            after = bisect_left(parts, shard_id + 1, lo=first, key=_shard_id)
            for _, run in runs_of_parts(islice(parts, first, after)):
                yield Run(shard_id, run, pending.decision.files)


def _shard_id(part: ConvertedPart) -> int:
    return part.shard_id
