"""The process that writes Parquet files: ``python -m journal.engine.parquet.worker``, started by `converter`.

It reads plans from standard input, a line of JSON each, and writes an answer for each to standard output. It ends when
its input is closed, even while it writes a file: then its engine has ended, and the file would not be used.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from typing import BinaryIO

import msgspec

from journal.engine.parquet.converter import Answer
from shards.errors import CorruptionError, StorageError
from shards.seams.file_system import FileSystem
from shards.seams.os_file_system import OsFileSystem
from shards.segments.conversion_plan import ConversionPlan

_NICENESS = 10


def answer(files: FileSystem, plan: ConversionPlan) -> Answer:
    """Write one file and return the result."""
    try:
        from shards.parquet.conversion import convert_log
    except (ImportError, OSError) as error:
        return Answer(failure=f"the libraries that write Parquet cannot be loaded: {error}")
    try:
        return Answer(sealed=convert_log(files, plan))
    except CorruptionError as error:
        return Answer(corruption=(error.path, error.position, error.problem))
    except OSError as error:
        return Answer(failure=f"{error.filename or plan.out_path}: {error.strerror or error}")
    except StorageError as error:
        return Answer(failure=str(error))


def _read_plans(source: BinaryIO, plans: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        plans.put(line)
    os._exit(0)


def main() -> None:
    """Answer plans until the input is closed."""
    os.nice(_NICENESS)
    # Ctrl-C in a terminal also goes to the server, which stops in order and ends this process by closing its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    files = OsFileSystem()
    plans: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_plans, args=(sys.stdin.buffer, plans), daemon=True).start()
    while True:
        plan = msgspec.json.decode(plans.get(), type=ConversionPlan)
        said = msgspec.json.encode(answer(files, plan)) + b"\n"
        try:
            sys.stdout.buffer.write(said)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # The engine was killed while the file was written. The thread that reads plans would block an orderly exit,
            # and there is nothing to clean up.
            os._exit(0)


if __name__ == "__main__":
    main()
