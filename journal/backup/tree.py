"""Which files of a data directory belong into a backup, in the order of a manifest.

Not there: what is made anew (locks, spare journal files, logs of RocksDB, half-written Parquet files).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from journal.engine.directory.data_directory import segment_directories
from shards.seams.file_system import FileSystem

DIRECTORIES = ("journal", "log", "sealed", "sealing", "state")
"""What a data directory consists of, beside its FORMAT file."""

_WANTED = {
    "journal": re.compile(r"journal-\d{16}\.jnl"),
    # Without its note, a Parquet file that was placed but not decided upon would count as left over.
    "sealing": re.compile(r".*\.place"),
    "state": re.compile(r"(?!LOCK$|LOG$|LOG\.old\.).*"),
}
_ANY = re.compile(r".*", re.DOTALL)


def paths_of(files: FileSystem, directory: str) -> Iterator[str]:
    """Paths in the directory, sorted as a manifest is.

    Raises:
        FileNotFoundError: Something of it went away meanwhile: nothing is passed over for that.
    """
    yield "FORMAT"
    # Asked for once: a directory that goes away later is an error, one that was never made is none.
    there = files.listdir(directory)
    segments = segment_directories(files, directory)
    for name in ("journal", *segments, "sealing", "state"):
        if name not in segments and name not in there:
            continue
        wanted = _WANTED.get(name, _ANY)
        for entry in files.listdir(f"{directory}/{name}"):
            if wanted.fullmatch(entry):
                yield f"{name}/{entry}"
