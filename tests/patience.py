"""How long tests wait for what should take no time."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 60.0
"""Bounds the wait for what never comes. It says nothing of how long it may take: machines that run tests are busy."""
