"""Small JSON files of the data directory; bigger things have formats of their own."""

from __future__ import annotations

import json

from shards.file_system import FileSystem


def write_json(files: FileSystem, path: str, content: dict[str, object]) -> None:
    """Write a whole file and sync it. A reader may see half of it: give it another name, and then its own."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.pwritev([json.dumps(content).encode() + b"\n"], 0)
        file.fsync()
    finally:
        file.close()
