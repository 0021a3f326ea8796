"""What a checker finds in a history."""

from __future__ import annotations

import attrs


@attrs.frozen
class Anomaly:
    """A promise that the history breaks.

    Attributes:
        kind: Which promise, e.g. ``lost write``.
        where: Shard, key or subscription.
        detail: The operations and values that show it.
    """

    kind: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.detail}"
