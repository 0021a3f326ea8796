"""The process that writes Parquet files: ``python -m journal.engine.parquet.worker``, started by `converter`.

Requests and answers are lines of JSON. It ends when its input is closed, even while it writes a file
(`journal.engine.workers.serving`).
"""

from __future__ import annotations

import errno
import time

import msgspec

from journal.engine.parquet.conversion_messages import Answer, Request, joined_request, lines_of_answer
from journal.engine.workers.serving import incoming_lines, write_lines
from shards.delta.actions import TableRequest
from shards.errors import CorruptionError, StorageError
from shards.seams.file_system import FileSystem
from shards.seams.os_file_system import OsFileSystem

_OF_ONE_FILE = (errno.ENOENT, errno.EIO)
"""Errors that say that a file is lost or cannot be read, and nothing about others."""


def answer(files: FileSystem, request: Request) -> Answer:
    """Write what is asked for and return the result."""
    try:
        from shards.parquet.shared_file import write_shared_files
        from shards.parquet.shared_reading import SharedReader
    except (ImportError, OSError) as error:
        return Answer(failure=f"the libraries that write Parquet cannot be loaded: {error}")
    try:
        if request.table is not None:
            return _update_table(files, request.table)
        if request.look_into:
            with SharedReader(files, request.look_into) as shared:
                return Answer(shard_ids=shared.shard_ids())
        if request.gather is not None:
            return Answer(gathered=write_shared_files(files, request.gather))
        return Answer(failure="the request names nothing to write")
    except CorruptionError as error:
        return Answer(corruption=(error.path, error.position, error.problem))
    except OSError as error:
        return _refused(request, error)
    except StorageError as error:
        return Answer(failure=str(error))


def _refused(request: Request, error: OSError) -> Answer:
    if request.look_into and error.errno in _OF_ONE_FILE:
        return Answer(corruption=(request.look_into, 0, error.strerror or str(error)))
    return Answer(failure=f"{error.filename or request.look_into or 'sealing/'}: {error.strerror or error}")


def _update_table(files: FileSystem, request: TableRequest) -> Answer:
    # Imported only here: most stores have no table, and the library takes as much memory as all others.
    try:
        from shards.delta.library import DeltaLibrary
        from shards.delta.table import update_table
    except (ImportError, OSError) as error:
        return Answer(failure=f"the library that reads Delta tables cannot be loaded: {error}")
    return Answer(table=update_table(files, request, DeltaLibrary(), time.time_ns() // 1_000_000))


def main() -> None:
    """Answer requests until the input is closed."""
    files = OsFileSystem()
    requests = incoming_lines()
    while True:
        lines = [msgspec.json.decode(requests.get(), type=Request)]
        while lines[-1].continues:
            lines.append(msgspec.json.decode(requests.get(), type=Request))
        said = answer(files, joined_request(lines))
        del lines
        write_lines(lines_of_answer(said))


if __name__ == "__main__":
    main()
