"""Reading the batches of closed segments for shared files, whether these are logs or in Parquet files already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa

from shards.errors import CorruptionError
from shards.format.batch import BatchHeader
from shards.format.checksum import Buffer
from shards.parquet.log_batches import LogBatches
from shards.parquet.shared_reading import PartOfFile, SharedReader
from shards.parquet.wire_batches import EncodedGroup
from shards.seams.file_system import FileSystem
from shards.segments.conversion_plan import PartSource, SourceKind


class SourceBatches:
    """Reads the batches of closed segments, one segment after the other, and checks them.

    Args:
        files: The file system. A log is open while it is read, a shared file until another source is read.
        sources: The segments.
        buffer_bytes: Number of bytes of logs that are read at once.
        before_reuse: Called before bytes of earlier batches are overwritten.

    Attributes:
        source: The segment of the batch that was returned last.
        buffer: Has that batch.
    """

    source: PartSource
    buffer: Buffer

    def __init__(
        self, files: FileSystem, sources: Sequence[PartSource], buffer_bytes: int, before_reuse: Callable[[], None]
    ) -> None:
        self._files = files
        self._sources = sources
        logs = [source for source in sources if source.kind is SourceKind.LOG]
        self._logs = LogBatches(files, logs, buffer_bytes, before_reuse)
        self._is_log = True

    def position_of(self, at: int) -> int:
        """Position in the log of a place in the buffer; 0 in a Parquet file."""
        return self._logs.position_of(at) if self._is_log else 0

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the place in the buffer and the header of each batch.

        Raises:
            CorruptionError: A segment is damaged, or its batches are not those of the source.
            OSError: A file cannot be read.
        """
        with ExitStack() as opened:
            opened.callback(self._logs.close)
            shared: dict[str, _SharedFile] = {}
            for source in self._sources:
                self.source = source
                self._is_log = source.kind is SourceKind.LOG
                if self._is_log:
                    for at, header in self._logs.read(source):
                        self.buffer = self._logs.buffer
                        yield at, header
                else:
                    if source.log_path not in shared:
                        reader = opened.enter_context(SharedReader(self._files, source.log_path))
                        shared[source.log_path] = _SharedFile(reader)
                    yield from self._batches_of(source, shared[source.log_path].batches_of(source))

    def _batches_of(self, source: PartSource, groups: Iterator[EncodedGroup]) -> Iterator[tuple[int, BatchHeader]]:
        following = source.base_offset
        for encoded in groups:
            self.buffer = encoded.data
            for at in encoded.positions:
                header = BatchHeader.unpack(encoded.data, at)
                if header.base_offset != following:
                    raise _other_offsets(source, following, header.base_offset)
                following = header.next_offset
                yield at, header
        if following != source.next_offset:
            raise _other_offsets(source, source.next_offset, following)


class _SharedFile:
    """A shared file of which many parts are read in order: each row group is decoded once for all of them."""

    def __init__(self, reader: SharedReader) -> None:
        self._reader = reader
        self._index = -1
        self._rows: pa.RecordBatch | None = None

    def batches_of(self, source: PartSource) -> Iterator[EncodedGroup]:
        part = PartOfFile(source.shard_id, source.base_offset, source.next_offset, source.first_row)
        try:
            groups = self._reader.groups_of(part)
        except ValueError as error:
            raise CorruptionError(source.log_path, 0, str(error)) from error
        for group in groups:
            if group.index != self._index:
                self._index, self._rows = group.index, self._reader.rows_for_batches(group.index)
            yield self._reader.batches(part, group, self._rows)


def _other_offsets(source: PartSource, expected: int, found: int) -> CorruptionError:
    return CorruptionError(
        source.log_path, 0, f"expected offset {expected} of shard {source.name!r} ({source.shard_id}), found {found}"
    )
