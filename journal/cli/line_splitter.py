"""Splits a byte stream into lines and batches of lines, with limits on both. Pure."""

from __future__ import annotations

import attrs

from command_line.boundary import CommandError


@attrs.define(slots=True)
class LineSplitter:
    """Splits a stream at its line feeds; nothing else is changed, a carriage return is kept.

    Attributes:
        max_line_bytes: A longer line is an error: it could never be sent, and waiting for its end could use all
            memory.
    """

    max_line_bytes: int
    _rest: bytes = b""
    _lines: int = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, without their line feeds.

        Raises:
            CommandError: A line is longer than allowed.
        """
        lines = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        self._rest = lines.pop()
        longest = max(map(len, lines), default=0)
        if max(longest, len(self._rest)) > self.max_line_bytes:
            raise CommandError(
                f"a line after line {self._lines} is longer than {self.max_line_bytes:,} bytes; "
                "a line is a record and has to fit into one batch"
            )
        self._lines += len(lines)
        return lines

    def finish(self) -> list[bytes]:
        """The last line, if the input did not end with a line feed."""
        last, self._rest = self._rest, b""
        return [last] if last else []


@attrs.define(slots=True)
class LineBatcher:
    """Collects lines into batches with limits on their lines and bytes.

    Attributes:
        max_lines: Number of lines of a full batch.
        max_bytes: A batch with this many bytes is also full; its last line may exceed it.
    """

    max_lines: int
    max_bytes: int
    _lines: list[bytes] = attrs.Factory(list)
    _size_bytes: int = 0

    def add(self, lines: list[bytes]) -> list[list[bytes]]:
        """Add lines; returns the batches that became full."""
        full: list[list[bytes]] = []
        for line in lines:
            self._lines.append(line)
            self._size_bytes += len(line)
            if len(self._lines) >= self.max_lines or self._size_bytes >= self.max_bytes:
                full += self.rest()
        return full

    def rest(self) -> list[list[bytes]]:
        """The collected lines as one batch, if there are any."""
        lines, self._lines, self._size_bytes = self._lines, [], 0
        return [lines] if lines else []
