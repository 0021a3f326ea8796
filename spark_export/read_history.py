"""Of which history of its store something is that was read before. Pure values.

A restore from a backup gives offsets out again. So beside how far a shard was read, whoever goes on later keeps which
restores the store had known by then; up to the lsn that both histories have, nothing has changed
(docs/adr/0028). Where offsets lie behind it is asked of the store (`spark_export.live_shards`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from shards.history import HistoryGap, common_lsn


@attrs.frozen(slots=True)
class ReadHistory:
    """What was read before.

    Attributes:
        restores: Restores that the store had known then.
        common_lsns: By name, of shards that could not be looked at when the store was found restored: up to which lsn
            what was read of them is of the history that it had then.
    """

    restores: tuple[HistoryGap, ...] = ()
    common_lsns: Mapping[str, int] = attrs.field(factory=dict, hash=False)

    def common_lsn(self, shard: str, found: Sequence[HistoryGap]) -> int | None:
        """The lsn up to which what was read of a shard is what a store with these restores has; None if all is."""
        return lower_lsn(common_lsn(self.restores, found), self.common_lsns.get(shard))


def lower_lsn(first: int | None, second: int | None) -> int | None:
    """The lower one; None stands for no bound."""
    return min((lsn for lsn in (first, second) if lsn is not None), default=None)


def encode_restores(restores: Iterable[HistoryGap]) -> list[list[int]]:
    """As JSON."""
    return [[gap.lsn_before, gap.lsn_after] for gap in restores]


def decode_restores(found: Iterable[Sequence[Any]]) -> tuple[HistoryGap, ...]:
    """Read what `encode_restores` gave. Raises `ValueError` or `TypeError` for anything else."""
    return tuple(HistoryGap(int(before), int(after)) for before, after in found)
