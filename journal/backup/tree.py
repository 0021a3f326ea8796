"""The files of a data directory that belong to a backup, in the order of a manifest.

Left out are files that a start creates again (locks, spare journal files, logs of RocksDB, unfinished Parquet files).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from journal.engine.directory.data_directory import segment_directories
from shards.seams.file_system import FileSystem

DIRECTORIES = ("journal", "log", "sealed", "sealing", "state")
"""The parts of a data directory, in addition to its FORMAT file."""

_WANTED = {
    "journal": re.compile(r"journal-\d{16}\.jnl"),
    # Without its note, a Parquet file that was placed but not decided would be taken for a valid one.
    "sealing": re.compile(r".*\.place"),
    "state": re.compile(r"(?!LOCK$|LOG$|LOG\.old\.).*"),
}
_ANY = re.compile(r".*", re.DOTALL)


def paths_of(files: FileSystem, directory: str) -> Iterator[str]:
    """Paths in the directory, sorted as in a manifest.

    Raises:
        FileNotFoundError: A file or directory disappeared in the meantime; nothing is skipped because of that.
    """
    yield "FORMAT"
    # Listed once: a directory that disappears later is an error, one that was never created is not.
    there = files.listdir(directory)
    segments = segment_directories(files, directory)
    for name in ("journal", *segments, "sealing", "state"):
        if name not in segments and name not in there:
            continue
        wanted = _WANTED.get(name, _ANY)
        for entry in files.listdir(f"{directory}/{name}"):
            if wanted.fullmatch(entry):
                yield f"{name}/{entry}"
