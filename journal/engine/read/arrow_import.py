"""The first import of numpy and pyarrow in the engine's process, which may be short of file descriptors.

An import that fails in the middle leaves numpy's C extension loaded without its Python modules: from then on every
import of numpy fails, until the process ends. So an import is only begun while enough file descriptors are free.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import attrs

from shards.errors import OverloadedError, StorageError
from shards.extras import install_command

if TYPE_CHECKING:
    from shards.parquet.shared_reading import PartOfFile, PartReader, SharedReader

_SPARE_DESCRIPTORS = 32
"""An import needs a few at a time; the rest is for connections that are accepted at the same time."""
_lock = threading.Lock()
_imported: list[ReaderTypes] = []


@attrs.frozen
class ReaderTypes:
    """The classes that read Parquet segments.

    Attributes:
        shared: Reads a file with segments of many shards.
        part: Reads one of these segments.
        place: Where it is in that file.
    """

    shared: type[SharedReader]
    part: type[PartReader]
    place: type[PartOfFile]


def reader_types(path: str) -> ReaderTypes:
    """Return the classes that read Parquet segments; the first call imports them. Blocks; any thread may call it.

    Args:
        path: The segment to read, for error messages.

    Raises:
        OverloadedError: Too few file descriptors are free for the import now; a later call may succeed.
        StorageError: A library is missing, or its import failed.
    """
    with _lock:
        if not _imported:
            _require_descriptors(path)
            try:
                from shards.parquet.shared_reading import PartOfFile, PartReader, SharedReader
            except ModuleNotFoundError as error:
                raise StorageError(
                    f"{path} is a Parquet segment, and to read it {error.name} has to be installed: "
                    f"{install_command('parquet')}"
                ) from error
            except (ImportError, OSError) as error:
                raise StorageError(
                    f"{path} is a Parquet segment, and the libraries that read it cannot be loaded: {error}. "
                    f"Restart the process"
                ) from error
            _imported.append(ReaderTypes(SharedReader, PartReader, PartOfFile))
        return _imported[0]


def _require_descriptors(path: str) -> None:
    held: list[int] = []
    try:
        while len(held) < _SPARE_DESCRIPTORS:
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise OverloadedError(
            f"{path} is a Parquet segment, and there are no file descriptors to load the libraries that read it: "
            f"{error.strerror}; allow the process more open files (LimitNOFILE of its unit, "
            f"limits.max_connections), or read again later"
        ) from error
    finally:
        for descriptor in held:
            os.close(descriptor)
