"""Reading a file of any size through a window of bounded memory."""

from __future__ import annotations

from journal.check.report import Counts, Progress
from shards.seams.file_system import File

WINDOW_BYTES = 1 << 20


class Window:
    """Returns views of a file's bytes and counts the bytes read.

    Attributes:
        size: Size of the file in bytes.
    """

    def __init__(self, file: File, counts: Counts, progress: Progress | None) -> None:
        self._file = file
        self._counts = counts
        self._progress = progress
        self._data = memoryview(b"")
        self._at = 0
        self.size = file.size()

    def view(self, position: int, size: int) -> memoryview:
        """``size`` bytes from a position on; fewer only at the end of the file."""
        size = min(size, self.size - position)
        if size <= 0:
            return memoryview(b"")
        at = position - self._at
        if at < 0 or at + size > len(self._data):
            self._data = memoryview(self._file.pread(max(size, WINDOW_BYTES), position))
            self._at, at = position, 0
            self._counts.bytes_read += len(self._data)
            if self._progress is not None:
                self._progress(self._counts.bytes_read)
        return self._data[at : at + size]

    def find(self, wanted: bytes, start: int, end: int) -> int:
        """Position of the first ``wanted`` that is completely in ``[start, end)``, or -1."""
        position = start
        while position < end:
            data = bytes(self.view(position, min(WINDOW_BYTES, end - position)))
            at = data.find(wanted)
            if at >= 0:
                return position + at
            if len(data) < WINDOW_BYTES:
                return -1
            position += len(data) - len(wanted) + 1
        return -1
