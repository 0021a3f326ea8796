"""Which shared files a server of a cluster has not fetched from the log store yet, and why not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shards.errors import FileUnavailableError
from shards.views.shared_files import FileKey

_NOT_YET: Final = "it is being fetched"


class UnfetchedFiles:
    """The shared files that the views name, and that are not in the data directory. Mostly there are none.

    Attributes:
        reason: Why the log store did not give the last one, for people; empty if it was not asked, or has given one.
    """

    def __init__(self) -> None:
        self._problems: dict[FileKey, str] = {}
        self.reason = ""

    def __len__(self) -> int:
        return len(self._problems)

    def __contains__(self, key: FileKey) -> bool:
        return key in self._problems

    @property
    def keys(self) -> frozenset[FileKey]:
        """Which they are."""
        return frozenset(self._problems)

    def add(self, keys: Iterable[FileKey]) -> None:
        """Note files that are not here."""
        for key in keys:
            self._problems.setdefault(key, "")

    def fetched(self, key: FileKey) -> None:
        """The log store gave a file, which is here now."""
        self.forget(key)
        self.reason = ""

    def forget(self, key: FileKey) -> None:
        """A file was here, or is not needed any more."""
        self._problems.pop(key, None)

    def note_problem(self, key: FileKey, problem: str) -> bool:
        """Note what is wrong with one file, beyond that the log store does not answer.

        Returns:
            Whether that is new.
        """
        was_known = self._problems.get(key) == problem
        self._problems[key] = problem
        return not was_known

    def check(self, key: FileKey, concerned: str) -> None:
        """Refuse a read that needs a file.

        Args:
            key: The file.
            concerned: What is in it, for people.

        Raises:
            FileUnavailableError: It is not here.
        """
        problem = self._problems.get(key)
        if problem is not None:
            raise FileUnavailableError(
                f"{concerned} cannot be read here yet: this server does not have their Parquet file from the log "
                f"store ({problem or self.reason or _NOT_YET}). Read again later, or from another server"
            )
