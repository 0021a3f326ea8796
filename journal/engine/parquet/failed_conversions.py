"""Segments that could not be converted, and when they are tried again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import attrs
import trio

from shards.back_off import BackOff
from shards.errors import CorruptionError
from shards.segments.log_segment import LogSegment
from shards.segments.segment import Segment
from shards.segments.shard import Shard

AFTER_FAILURES: Final = BackOff(1.0, 300.0, jitter=0.0)
"""How long a segment, and all others, wait after a failure."""
_Key: TypeAlias = tuple[int, int]


@attrs.define
class _Failed:
    attempts: int = 0
    not_before: float = 0.0
    corruption: CorruptionError | None = None


class FailedConversions:
    """The failed conversions of one engine. All times are those of trio's clock.

    A damaged segment is not tried again before the next start. After other failures a segment waits, and so do all.

    Attributes:
        not_before: Nothing is converted before this time.
    """

    def __init__(self) -> None:
        self._failed: dict[_Key, _Failed] = {}
        self._in_a_row = 0
        self.not_before = 0.0

    def __len__(self) -> int:
        return len(self._failed)

    def corruption_of(self, shard: Shard, segment: Segment) -> CorruptionError | None:
        """The damage of a segment; None if none was found."""
        failed = self._failed.get(_key(shard, segment))
        return failed.corruption if failed is not None else None

    def may_be_tried(self, shard: Shard, segments: Iterable[LogSegment], *, now: float) -> list[LogSegment]:
        """Those of a shard's segments that are not damaged, and do not wait after a failure."""
        return [segment for segment in segments if self._may_be_tried(_key(shard, segment), now)]

    def _may_be_tried(self, key: _Key, now: float) -> bool:
        failed = self._failed.get(key)
        return failed is None or (failed.corruption is None and now >= failed.not_before)

    def pause_ends(self) -> Iterator[float]:
        """The times at which segments may be tried again."""
        yield self.not_before
        yield from (failed.not_before for failed in self._failed.values() if failed.corruption is None)

    def note_corruption(self, shard: Shard, segment: Segment, error: CorruptionError) -> None:
        """Note that a segment is damaged."""
        self._failed[_key(shard, segment)] = _Failed(corruption=error)

    def note_failure(self, shard: Shard, segment: Segment) -> None:
        """Note that a conversion failed, which may succeed later."""
        now = trio.current_time()
        failed = self._failed.setdefault(_key(shard, segment), _Failed())
        failed.not_before = now + AFTER_FAILURES.delay_s(failed.attempts)
        failed.attempts += 1
        self.not_before = now + AFTER_FAILURES.delay_s(self._in_a_row)
        self._in_a_row += 1

    def note_success(self) -> None:
        """Note that segments were converted: others need not wait."""
        self._in_a_row = 0
        self.not_before = 0.0

    def end_pauses(self, shard: Shard, segments: Iterable[LogSegment]) -> None:
        """Have these segments tried at once: who asks for it has perhaps removed the cause of the failure."""
        for segment in segments:
            if (failed := self._failed.get(_key(shard, segment))) is not None:
                failed.not_before = 0.0
        self.not_before = 0.0

    def forget(self, shard: Shard, segment: Segment) -> None:
        """Forget the failures of a segment."""
        self._failed.pop(_key(shard, segment), None)

    def forget_dropped(self, shard_id: int, kept: Iterable[Segment]) -> None:
        """Forget the failures of a shard's segments, except of those that it still has."""
        offsets = {segment.base_offset for segment in kept}
        for key in [key for key in self._failed if key[0] == shard_id and key[1] not in offsets]:
            del self._failed[key]


def _key(shard: Shard, segment: Segment) -> _Key:
    return shard.shard_id, segment.base_offset
