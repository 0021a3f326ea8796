"""Reading the batches of log segments for conversion: each is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shards.errors import BatchError, CorruptionError
from shards.format.batch import HEADER_SIZE, MAX_RAW_BYTES, BatchHeader, verify
from shards.format.batch_header import stored_size
from shards.seams.file_system import File, FileSystem
from shards.segments.conversion_plan import PartSource
from shards.segments.log_segment import LogHeader

BUFFER_BYTES = 4 << 20
_MAX_BATCH_BYTES = 2 * MAX_RAW_BYTES


class LogBatches:
    """Reads the batches of log segments, one segment after the other, and checks them.

    The logs are read through one buffer that is reused: allocating memory would take longer than all checks. Small logs
    lie in it side by side. Logs that lie one after the other in one file are read together.

    Args:
        files: The file system; a file is open until a log in another one is read, or `close`.
        sources: The logs.
        buffer_bytes: Number of bytes that are read at once; the buffer grows for a larger batch.
        before_reuse: Called before bytes of earlier batches are overwritten.

    Attributes:
        buffer: Has the batch that was returned last.
        source: The log that it is from.
    """

    def __init__(
        self, files: FileSystem, sources: Sequence[PartSource], buffer_bytes: int, before_reuse: Callable[[], None]
    ) -> None:
        self._files = files
        self._before_reuse = before_reuse
        total = sum(max(0, source.end_position) for source in sources)
        self.buffer = bytearray(min(buffer_bytes, total))
        self._filled = 0
        # Position in the log of the buffer's first byte; below 0 if other logs are in front.
        self._position = 0
        # The open file, and how far the logs that follow each other in it are to be read.
        self._log: File | None = None
        self._path = ""
        self._readable_to = _ends_of_runs(sources)
        # Which byte of the file is where in the buffer, if the next log was read together with the last one.
        self._ahead_position = self._ahead_at = 0

    def read(self, source: PartSource) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the place in the buffer and the header of each batch of a log; the logs are read in their order.

        Raises:
            CorruptionError: A batch is damaged, or the batches are not those of the source.
            OSError: The log cannot be read.
        """
        self.source = source
        at = self._filled
        if self._log is None or self._path != source.log_path:
            self.close()
            self._log, self._path = self._files.open(source.log_path, write=False), source.log_path
        elif self._ahead_position == source.file_position:
            at = self._ahead_at
        self._position = -at
        return self._batches_of(self._log, source, at)

    def close(self) -> None:
        """Close the file that was read last."""
        log, self._log, self._path = self._log, None, ""
        if log is not None:
            log.close()

    def position_of(self, at: int) -> int:
        """Position in the log of a place in the buffer."""
        return self._position + at

    def _batches_of(self, log: File, source: PartSource, at: int) -> Iterator[tuple[int, BatchHeader]]:
        while self._filled - at < min(source.start_position, source.end_position):
            at = self._fill(log, source, at, source.start_position)
        _check_header(bytes(memoryview(self.buffer)[at : at + source.start_position]), source)
        at += source.start_position
        last = BatchHeader(0, source.base_offset, *(0,) * 15)
        while self._position + at < source.end_position:
            available = self._filled - at
            if available < HEADER_SIZE:
                at = self._fill(log, source, at, HEADER_SIZE)
                continue
            size = stored_size(self.buffer, at)
            if size > min(available, source.end_position - self._position - at):
                at = self._fill(log, source, at, size)
                continue
            header = self._verify(at, last)
            yield at, header
            last = header
            at += size
        if last.next_offset != source.next_offset:
            raise CorruptionError(
                source.log_path,
                source.end_position,
                f"the batches end before offset {last.next_offset}, expected {source.next_offset}",
            )
        self._ahead_position, self._ahead_at = source.file_position + source.end_position, at

    def _fill(self, log: File, source: PartSource, at: int, needed: int) -> int:
        """Read more of the log behind what is in the buffer from ``at`` on; returns where that is now.

        Args:
            needed: Number of bytes from there on without which nothing can be done.
        """
        known = self._filled - at
        left = source.end_position - self._position - at
        if needed > min(left, _MAX_BATCH_BYTES):
            raise CorruptionError(
                source.log_path,
                self._position + at,
                f"a batch of {needed} bytes begins here, expected at most {left}",
            )
        if min(left, max(needed, len(self.buffer) // 4)) > len(self.buffer) - at:
            # Most of the buffer is used: continue at its front.
            self._before_reuse()
            rest = bytes(memoryview(self.buffer)[at : self._filled])
            if needed > len(self.buffer):
                self.buffer = bytearray(needed)
            self.buffer[:known] = rest
            self._position += at
            self._filled, at = known, 0
        end = source.file_position + source.end_position
        left_of_run = left + self._readable_to.get((self._path, end), end) - end
        view = memoryview(self.buffer)[self._filled : at + left_of_run]
        self._filled += log.readinto(view, source.file_position + self._position + self._filled)
        if self._filled < min(len(self.buffer), at + left):
            raise CorruptionError(
                source.log_path,
                self._position + self._filled,
                f"the file ends here, expected {source.end_position} bytes",
            )
        return at

    def _verify(self, at: int, last: BatchHeader) -> BatchHeader:
        try:
            header = verify(self.buffer, at)
        except BatchError as error:
            raise CorruptionError(self.source.log_path, self.position_of(at), str(error)) from error
        if (
            header.base_offset != last.base_offset + last.record_count
            or header.lsn <= last.lsn
            or header.append_time_us < last.append_time_us
            or header.flags
        ):
            raise CorruptionError(self.source.log_path, self.position_of(at), _why_out_of_order(header, last))
        return header


def _why_out_of_order(header: BatchHeader, last: BatchHeader) -> str:
    """Return the reason why a batch cannot follow the one before."""
    if header.is_gap:
        return "expected a batch of records, found a gap"
    if header.base_offset != last.next_offset:
        return f"expected a batch from offset {last.next_offset} on, found one from {header.base_offset}"
    if header.lsn <= last.lsn:
        return f"expected a batch with an lsn over {last.lsn}, found lsn {header.lsn}"
    return f"expected a batch appended at {last.append_time_us} us or later, found {header.append_time_us} us"


def _ends_of_runs(sources: Sequence[PartSource]) -> dict[tuple[str, int], int]:
    """Where in their file logs end that follow each other, by the file and where each of them but the last ends."""
    ends: dict[tuple[str, int], int] = {}
    for source, following in zip(reversed(sources[:-1]), reversed(sources[1:]), strict=True):
        end = source.file_position + source.end_position
        if source.log_path == following.log_path and end == following.file_position:
            following_end = following.file_position + following.end_position
            ends[source.log_path, end] = ends.get((source.log_path, following_end), following_end)
    return ends


def _check_header(data: bytes, source: PartSource) -> None:
    header, size = LogHeader.decode(source.log_path, data)
    for what, expected, found in (
        ("shard", source.name, header.name),
        ("shard id", f"{source.shard_id:016x}", f"{header.shard_id:016x}"),
        ("base offset", source.base_offset, header.base_offset),
        ("position of the first batch", source.start_position, size),
    ):
        if expected != found:
            raise CorruptionError(source.log_path, 0, f"{what}: expected {expected}, found {found}")
