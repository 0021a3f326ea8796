"""Going through the names of shards that match a topic filter, in bounded steps.

A filter that begins with a wildcard is compared with every name there is. Names are looked at in their order, from the
last one that was looked at on, so shards may come and go meanwhile: each shard that is there from the beginning to the
end is found exactly once, one that is created or deleted meanwhile may be found or not.
"""

from __future__ import annotations

from typing import Final

import trio

from shards.topics.topic_filters import validate_filter
from shards.views.catalogue import Catalogue

_LOOKED_AT_ONCE: Final = 1000


class NameScan:
    """One walk over the names.

    Args:
        catalogue: Has the names.
        topic_filter: What they have to match.
        after: Only names that sort behind this one.

    Raises:
        InvalidNameError: The filter is not valid.
    """

    def __init__(self, catalogue: Catalogue, topic_filter: str, after: str = "") -> None:
        validate_filter(topic_filter)
        self._catalogue = catalogue
        self._filter = topic_filter
        self._after: str | None = after

    async def more(self) -> list[str] | None:
        """Some names that match, perhaps none; None at the end. A checkpoint; cancelling it loses nothing."""
        await trio.lowlevel.checkpoint()
        if self._after is None:
            return None
        names, self._after = self._catalogue.scan(self._filter, self._after, _LOOKED_AT_ONCE)
        return names
