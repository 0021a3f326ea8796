"""Scanning the names of shards that match a topic filter, in steps of bounded length.

A filter that begins with a wildcard is compared with every name. Names are visited in sorted order, continuing after
the last one, so shards may be created and deleted in the meantime: a shard that exists during the whole scan is found
exactly once; one that is created or deleted during the scan may be found or not.
"""

from __future__ import annotations

from typing import Final

import trio

from shards.topics.topic_filters import validate_filter
from shards.views.catalogue import Catalogue

_LOOKED_AT_ONCE: Final = 1000


class NameScan:
    """One scan of the names.

    Args:
        catalogue: The catalogue of the shards.
        topic_filter: The filter that the names have to match.
        after: Only names that sort after this one.

    Raises:
        InvalidNameError: The filter is not valid.
    """

    def __init__(self, catalogue: Catalogue, topic_filter: str, after: str = "") -> None:
        validate_filter(topic_filter)
        self._catalogue = catalogue
        self._filter = topic_filter
        self._after: str | None = after

    async def more(self) -> list[str] | None:
        """Return some matching names, perhaps none; None at the end. A checkpoint; cancelling it loses nothing."""
        await trio.lowlevel.checkpoint()
        if self._after is None:
            return None
        names, self._after = self._catalogue.scan(self._filter, self._after, _LOOKED_AT_ONCE)
        return names
