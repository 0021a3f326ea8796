"""Counts of fetches of keys; apart from `key_source`, which needs the extra ``logins``."""

from __future__ import annotations

import attrs


@attrs.define(slots=True)
class KeyStatistics:
    """What happened to fetches of keys.

    Attributes:
        fetch_count: Fetches that gave keys.
        failure_count: Fetches that failed.
        is_failing: Whether the last one failed.
    """

    fetch_count: int = 0
    failure_count: int = 0
    is_failing: bool = False
