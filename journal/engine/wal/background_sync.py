"""A sync of a file in a thread of its own, while the thread that wrote to the file does something else."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Final

from shards.seams.file_system import File


class BackgroundSync:
    """Syncs one file at a time. All methods are called by one thread.

    Args:
        name: Name of the thread, which is started at the first sync.
    """

    def __init__(self, name: str) -> None:
        self._thread: Final = ThreadPoolExecutor(1, name)
        self._under_way: Future[float] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a sync was begun and not finished."""
        return self._under_way is not None

    def begin(self, file: File) -> None:
        """Begin to sync what was written to a file. The one before must have been finished.

        Args:
            file: Stays open until `finish` returns.
        """
        assert self._under_way is None
        self._under_way = self._thread.submit(_sync, file)

    def finish(self) -> float | None:
        """Wait until what was begun is durable.

        Returns:
            The seconds that it took; None if nothing was begun.

        Raises:
            OSError: The disk failed. It is raised once.
        """
        under_way, self._under_way = self._under_way, None
        return None if under_way is None else under_way.result()

    def close(self) -> None:
        """End the thread, after what was begun."""
        self._thread.shutdown()


def _sync(file: File) -> float:
    began_s = perf_counter()
    file.fdatasync()
    return perf_counter() - began_s
