"""The history of a store to which earlier reads belong. Pure values.

After a restore from a backup, offsets are assigned again. So an incremental reader keeps, together with how far it read
each shard, the restores that the store had known by then; up to the lsn that both histories share, nothing has changed
(docs/adr/0028). The offsets that belong to that lsn are requested from the store (`spark_export.live_shards`).
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
        restores: Restores that the store knew then.
        common_lsns: By name, for shards that could not be compared when the store was found restored: up to which lsn
            the records read belong to the present history.
    """

    restores: tuple[HistoryGap, ...] = ()
    common_lsns: Mapping[str, int] = attrs.field(factory=dict, hash=False)

    def common_lsn(self, shard: str, found: Sequence[HistoryGap]) -> int | None:
        """The lsn up to which the records read of a shard are those of a store with these restores; None: all are."""
        return lower_lsn(common_lsn(self.restores, found), self.common_lsns.get(shard))


def lower_lsn(first: int | None, second: int | None) -> int | None:
    """The lower one; None means no bound."""
    return min((lsn for lsn in (first, second) if lsn is not None), default=None)


def encode_restores(restores: Iterable[HistoryGap]) -> list[list[int]]:
    """Encode as JSON."""
    return [[gap.lsn_before, gap.lsn_after] for gap in restores]


def decode_restores(found: Iterable[Sequence[Any]]) -> tuple[HistoryGap, ...]:
    """Decode the result of `encode_restores`. Raises `ValueError` or `TypeError` if it is not valid."""
    return tuple(HistoryGap(int(before), int(after)) for before, after in found)
