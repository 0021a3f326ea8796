"""Names of sealed files, which have records of many shards.

Nothing is read here. A file has only the day in its name: of which shards it has records is in its rows
(`spark_export.shared_files`). Layout and names are those of `shards.segments.segment_paths`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import attrs

from shards.segments.segment_paths import day_of_date, shared_path
from spark_export.errors import UnreadableError

DATE_PREFIX: Final = "date="
"""Beginning of the names of the directories that have shared files."""

DELTA_LOG: Final = "_delta_log"
"""The directory of the log of the Delta table over them."""

_OLD_PREFIX: Final = "shard="
_SHARED = re.compile(r"(?:.*/)?date=([0-9-]{10})/([0-9a-f]{16})\.parquet")


@attrs.frozen(slots=True, order=True)
class SharedName:
    """One shared file, by its path.

    Attributes:
        day: Days since 1970 of the appends in it.
        file_id: Its number; files of several days may have the same one.
    """

    day: int
    file_id: int

    @property
    def path(self) -> str:
        """Its path below the directory of all sealed segments."""
        return shared_path("", self.day, self.file_id).removeprefix("/")


def parse_shared(path: str) -> SharedName | None:
    """The shared file of a path; None for another file."""
    found = _SHARED.fullmatch(path)
    if found is None:
        return None
    try:
        return SharedName(day_of_date(found[1]), int(found[2], 16))
    except ValueError:
        return None


def is_sealed_tree(names: Iterable[str]) -> bool:
    """Whether a directory with these names is one of all sealed segments.

    It may have none: before the first one there is only a hidden marker, and after a trim of all of them the log of the
    Delta table is left.
    """
    shown = [name for name in names if not name.startswith(".")]
    return not shown or any(name.startswith(DATE_PREFIX) or name == DELTA_LOG for name in shown)


def require_present_form(names: Iterable[str], path: str) -> None:
    """Return if a tree has no files of the form before shared files, which had a directory for each shard.

    Args:
        names: The names in the directory of all sealed segments.
        path: The directory, for the message.

    Raises:
        UnreadableError: It has some.
    """
    old = min((name for name in names if name.startswith(_OLD_PREFIX)), default=None)
    if old is not None:
        raise UnreadableError(
            f"{path}/{old} is of a form of sealed segments that this version does not read, with a directory for each "
            "shard; read it with the version that wrote it, or with any reader of Parquet"
        )
