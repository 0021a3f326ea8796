"""The protocol versions that are spoken."""

from __future__ import annotations

import enum


class Version(enum.IntEnum):
    """Protocol level as CONNECT names it."""

    V311 = 4
    V5 = 5
