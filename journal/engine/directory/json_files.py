"""Small JSON files that describe a directory: its layout, its node, and the like."""

from __future__ import annotations

import json
import posixpath

from shards.errors import CorruptionError, FormatVersionError
from shards.seams.file_system import FileSystem

_MAX_BYTES = 4096


def write_json(files: FileSystem, path: str, content: dict[str, object]) -> None:
    """Write a whole file and sync it. A reader may see half of it: write it under another name and then rename it."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.pwritev([json.dumps(content).encode() + b"\n"], 0)
        file.fsync()
    finally:
        file.close()


def replace_json(files: FileSystem, path: str, content: dict[str, object]) -> None:
    """Write a file under a temporary name (its name and ``.new``) and rename it, so that no reader sees half of it.

    Durable once the directory is synced.
    """
    write_json(files, f"{path}.new", content)
    files.rename(f"{path}.new", path)


def read_json(files: FileSystem, path: str) -> object:
    """Return the decoded content of a file.

    Raises:
        CorruptionError: It is not JSON.
    """
    stored = _read(files, path)
    try:
        return json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(path, 0, f"expected JSON, found {stored[:40]!r}") from error


def write_marker(files: FileSystem, path: str, *, version: int, node_id: str) -> None:
    """Write a file with the layout of its directory and its node's id. Durable once the directory is synced."""
    replace_json(files, path, {"version": version, "node_id": node_id})


def read_marker(files: FileSystem, path: str, *, kind: str, version: int, way_out: str) -> str:
    """Return the id of the node that `write_marker` wrote.

    Args:
        kind: What kind of layout it is, for the error message.
        version: The newest version that this program knows.
        way_out: What the user can do if the layout is newer, for the error message.

    Raises:
        FormatVersionError: A newer program made the directory.
        CorruptionError: The file cannot be read.
    """
    stored = _read(files, path)
    try:
        content = json.loads(stored)
        found, node_id = int(content["version"]), str(content["node_id"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptionError(path, 0, f"expected JSON with version and node_id, found {stored[:40]!r}") from error
    if found > version:
        directory = posixpath.dirname(path)
        raise FormatVersionError(f"{directory} has {kind} {found}, this program knows up to {version}; {way_out}")
    return node_id


def _read(files: FileSystem, path: str) -> bytes:
    file = files.open(path, write=False)
    try:
        return file.pread(_MAX_BYTES, 0)
    finally:
        file.close()
