"""A read that the operating system refuses was an internal error and closed the connection of subscribers.

It has a name now, which says which file and whether reading again may help; nothing else that is read is concerned.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from journal.engine.read.read_failures import refusals_named
from shards.errors import CorruptionError, OverloadedError, StorageError
from tests.journal.test_parquet_reader import logs_to_read, reader_of, sealed, three_groups
from tests.shards.shard_workload import ShardWorkload


class RefusingFiles:
    """A file system that does not open files."""

    def __init__(self, files: Any, number: int) -> None:
        self._files = files
        self.number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, path: str, **how: Any) -> Any:
        if self.number:
            raise OSError(self.number, os.strerror(self.number), path)
        return self._files.open(path, **how)


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EMFILE, OverloadedError), (errno.ENFILE, OverloadedError), (errno.EIO, CorruptionError)],
)
@pytest.mark.parametrize("workload", [logs_to_read(), sealed(three_groups())], ids=["log", "Parquet"])
async def test_a_file_that_cannot_be_opened_is_named_and_is_read_when_it_can(
    workload: ShardWorkload, number: int, error: type[StorageError]
) -> None:
    files = RefusingFiles(workload.files, number)
    reader = reader_of(workload, files)
    with pytest.raises(error, match=os.strerror(number)) as refused:
        await reader.read(workload.shard, 0, 1000)
    path = workload.shard.segments[0].path  # type: ignore[union-attr]
    assert path.removesuffix(".log") in str(refused.value)
    files.number = 0
    assert (await reader.read(workload.shard, 0, 1000)).size_bytes


def test_a_shortage_may_pass_and_a_file_that_is_gone_is_not_refused() -> None:
    with pytest.raises(OverloadedError) as short, refusals_named("/log/a.log"):
        raise OSError(errno.EMFILE, "Too many open files")
    assert short.value.retriable
    with pytest.raises(FileNotFoundError), refusals_named("/log/a.log"):
        raise FileNotFoundError("/log/a.log")
