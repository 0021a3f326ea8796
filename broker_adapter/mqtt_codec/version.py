"""The supported protocol versions."""

from __future__ import annotations

import enum


class Version(enum.IntEnum):
    """Protocol level in CONNECT."""

    V311 = 4
    V5 = 5
