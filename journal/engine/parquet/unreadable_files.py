"""Shared files that could not be read when they were to be rewritten: they are left as they are, and others are not.

They are looked at again from time to time, until they can be read or are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from journal.engine.parquet.converter import ParquetConverter
from shards.errors import CorruptionError, StorageError
from shards.segments.segment_paths import shared_path
from shards.views.shared_files import FileKey

_log = logging.getLogger("journal.conversion")

_LOOKED_AGAIN_S: Final = 300.0


@attrs.define
class _Unreadable:
    problem: str
    look_again_at: float


class UnreadableFiles:
    """The unreadable files of one engine, as far as they were found. There are few or none.

    Args:
        root: The directory of all Parquet segments.
        valid: Returns the shared files that are valid now.
    """

    def __init__(self, root: str, valid: Callable[[], Sequence[FileKey]]) -> None:
        self._root = root
        self._valid = valid
        self._files: dict[FileKey, _Unreadable] = {}

    @property
    def keys(self) -> frozenset[FileKey]:
        """Which they are."""
        return frozenset(self._files)

    @property
    def due_at(self) -> float:
        """When one of them is to be looked at again, by trio's clock; infinite if there is none."""
        return min((each.look_again_at for each in self._files.values()), default=float("inf"))

    @property
    def description(self) -> str:
        """Text that names the first of them and how many there are; empty if there is none."""
        if not self._files:
            return ""
        first = self._files[min(self._files)].problem
        others = len(self._files) - 1
        more = f" and {others} more like it" if others else ""
        return f"a shared file cannot be read, and is left as it is: {first}{more}"

    def add(self, key: FileKey, error: Exception) -> None:
        """Note that a file could not be read. It is logged once for each problem."""
        problem = str(error)
        known = self._files.get(key)
        if known is None or known.problem != problem:
            _log.error(
                "a shared file cannot be read: %s. It is left as it is, others are rewritten and merged. Put it back "
                "from a backup",
                problem,
            )
        self._files[key] = _Unreadable(problem, trio.current_time() + _LOOKED_AGAIN_S)

    async def look_again(self, converter: ParquetConverter) -> None:
        """Forget those that are gone, and those that can be read again, for which it is time."""
        if not self._files:
            return
        valid = frozenset(self._valid())
        now = trio.current_time()
        for key, file in list(self._files.items()):
            if key not in valid:
                del self._files[key]
            elif now >= file.look_again_at:
                try:
                    await converter.shards_in(shared_path(self._root, *key))
                except (CorruptionError, FileNotFoundError) as error:
                    self.add(key, error)
                except (StorageError, OSError):
                    # Perhaps the disk or the worker process is the cause: what is known of the file stays.
                    file.look_again_at = trio.current_time() + _LOOKED_AGAIN_S
                else:
                    del self._files[key]
                    _log.info("%s can be read again", shared_path(self._root, *key))
