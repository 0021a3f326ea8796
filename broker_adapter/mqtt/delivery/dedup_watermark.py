"""How far a consumer has come in all shards, so that it gets every record exactly once. Pure.

Sources of records (tails, reads of the store) may overlap and may restart at an earlier place, but none of them skips
records. A consumer that takes only records beyond its watermark gets every record once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker_adapter.mqtt.model.position import ReachedLsn
from shards.format.record import StoredRecord

Place = tuple[int, int]
"""lsn and offset of a record. In one shard they rise together, also when it is deleted and created again."""

_FEW: Final = 16
_NO_PLACE: Final = (-1, -1)


class DedupWatermark:
    """An lsn up to which everything is done, and for single shards a place up to which they are done beyond it.

    Attributes:
        lsn: Everything up to here is done.
        is_large: It holds many places; `raise_to` may free some.
    """

    __slots__ = ("_large_at", "_places", "is_large", "lsn")

    def __init__(self, lsn: ReachedLsn) -> None:
        self.lsn = lsn
        self.is_large = False
        self._places: dict[str, Place] = {}
        self._large_at = _FEW

    def __len__(self) -> int:
        """Return the number of shards that are done beyond `lsn`."""
        return len(self._places)

    def first_new(self, shard: str, records: Sequence[StoredRecord]) -> int:
        """Index of the first record that is not done; the number of records if all are.

        Args:
            shard: Their shard.
            records: At least one, in order.
        """
        lsn, place = self.lsn, self._places.get(shard)
        first = records[0]
        if first.lsn > lsn and (place is None or (first.lsn, first.offset) > place):
            return 0
        for at, record in enumerate(records):
            if record.lsn > lsn and (place is None or (record.lsn, record.offset) > place):
                return at
        return len(records)

    def advance(self, shard: str, place: Place) -> None:
        """A shard is done up to this place."""
        if place > self._places.get(shard, _NO_PLACE):
            self._places[shard] = place
        if len(self._places) > self._large_at:
            self.is_large = True

    def raise_to(self, lsn: ReachedLsn) -> None:
        """Everything is done up to this lsn. A lower lsn than before changes nothing."""
        self.lsn = max(self.lsn, lsn)
        if self._places:
            lsn = self.lsn
            self._places = {shard: place for shard, place in self._places.items() if place[0] > lsn}
            # Scanned again only when it has doubled, so that places that cannot be freed cost little.
            self._large_at = max(_FEW, 2 * len(self._places))
        self.is_large = False
