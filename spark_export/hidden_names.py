"""Names that begin with ``$``, which a filter `#` leaves out (MQTT 5.0, 4.7.2), and files that have none of them.

For a file without such names Spark needs no condition on each row. Whether it has any is told by the smallest and the
largest name in it: such names are neighbours in the order of names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

FIRST: Final = "$"
AFTER: Final = "%"
"""The names that begin with ``$`` are those from `FIRST` up to this one, in the order of their bytes."""

Bounds: TypeAlias = tuple[str, str] | None
"""A text that no name is below, and one that no name is above; None if they are not known."""


def has_none(all_bounds: Iterable[Bounds]) -> bool:
    """Whether no name within any of these bounds begins with ``$``."""
    return all(bounds is not None and (bounds[0] >= AFTER or bounds[1] < FIRST) for bounds in all_bounds)
