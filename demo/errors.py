"""The one error of the demo."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot continue; the message says what happened and where to look."""
