"""The sink ``files``: runs `queue_files` in threads, with a time limit for each call."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import trio

from broker_adapter.sinks.batch import Batch
from broker_adapter.sinks.errors import SinkUnavailableError
from broker_adapter.sinks.files.contents import Encode, encode_lines, parquet_encoder
from broker_adapter.sinks.files.queue_files import QueueFiles
from broker_adapter.sinks.files.settings import FilesSettings, Format
from broker_adapter.sinks.sink import Sink, SinkContext

_T = TypeVar("_T")

_THREADS: Final = 2
_ADVICE: Final = {
    errno.ENOENT: "; create the directory, or mount its file system",
    errno.ENOTDIR: "; name a directory",
    errno.EACCES: "; allow the user that runs the bridge to write there",
    errno.EPERM: "; allow the user that runs the bridge to write there",
    errno.ENOSPC: "; free disk space, or set another directory",
    errno.EDQUOT: "; raise the quota, or set another directory",
    errno.EROFS: "; mount it for writing",
}


@asynccontextmanager
async def open_files_sink(settings: FilesSettings, context: SinkContext) -> AsyncIterator[Sink]:
    """Open the sink; the directory is not accessed yet.

    Raises:
        ConfigurationError: A type is declared for a column that rows do not have, or Arrow is not installed.
    """
    is_parquet = settings.format is Format.PARQUET
    encode = parquet_encoder(context.columns, settings.types) if is_parquet else encode_lines
    files = QueueFiles(Path(settings.directory), context.queue_id, f".{settings.format.value}", context.epoch)
    sink = FilesSink(settings.directory, settings.timeout_s, files, encode)
    try:
        yield sink
    finally:
        await sink.aclose()


class FilesSink(Sink):
    """Writes batches into a directory.

    A call that is cancelled or takes too long leaves its thread running, because a disk that hangs cannot be
    interrupted. That does no harm: the thread works under the lock of the queue, and its token is invalid once the
    position was read again, so it adds no file any more. There are at most two threads, so a disk that hangs
    permanently blocks no more than these.
    """

    keeps_position = True

    def __init__(self, directory: str, timeout_s: float, files: QueueFiles, encode: Encode) -> None:
        self._address = directory
        self._timeout_s = timeout_s
        self._files = files
        self._encode = encode
        self._turn = files.new_turn()
        self._threads = trio.CapacityLimiter(_THREADS)

    async def check(self) -> None:
        await self._in_thread(self._files.probe)

    async def position(self) -> int | None:
        self._turn = self._files.new_turn()
        return await self._in_thread(self._files.take_over)

    async def write(self, batch: Batch) -> None:
        turn = self._turn
        await self._in_thread(lambda: self._files.put(batch, self._encode(batch), turn))

    async def aclose(self) -> None:
        self._files.new_turn()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        try:
            with trio.fail_after(self._timeout_s):
                return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except trio.TooSlowError as error:
            raise SinkUnavailableError(
                f"{self._address} did not take a file within timeout_s = {self._timeout_s}"
            ) from error
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0, "")
            raise SinkUnavailableError(
                f"{self._address} accepts no files: {error.strerror or error}{advice}"
            ) from error
