"""The data directory: where things lie in it, whose it is, and of which version.

::

    LOCK        held by the process that uses the directory
    FORMAT      JSON: version of the layout, random id of the node
    SERVER      JSON: where the server that uses the directory listens, and its process id; only while it does
    journal/    journal files
    log/        log segments, in 256 directories
    sealed/     Parquet segments, a directory for each shard
    sealing/    Parquet segments that are being written; emptied at the start
    state/      the views (RocksDB)
    snapshots/  what a backup is copying just now, hard links mostly; emptied at the start
"""

from __future__ import annotations

import re
import secrets

import attrs

from journal.json_files import read_marker, replace_json, write_marker
from shards.errors import DataDirectoryError
from shards.file_system import FileSystem, Lock, make_durable_directory

LAYOUT_VERSION = 1

_SNAPSHOT = re.compile(r"[0-9a-f]{8}(\.gone)?")
_SEGMENT_DIRECTORIES = (("log", re.compile("[0-9a-f]{2}")), ("sealed", re.compile("shard=.*", re.DOTALL)))


@attrs.define(slots=True)
class DataDirectory:
    """An open data directory; `close` lets others have it."""

    path: str
    node_id: str
    lock: Lock
    _files: FileSystem

    @property
    def journal(self) -> str:
        """Directory of the journal files."""
        return f"{self.path}/journal"

    @property
    def log(self) -> str:
        """Directory of the log segments."""
        return f"{self.path}/log"

    @property
    def sealed(self) -> str:
        """Directory of the Parquet segments."""
        return f"{self.path}/sealed"

    @property
    def sealing(self) -> str:
        """Directory of Parquet segments that are being written."""
        return f"{self.path}/sealing"

    @property
    def state(self) -> str:
        """Directory of the views' store."""
        return f"{self.path}/state"

    @property
    def snapshots(self) -> str:
        """Directory of the snapshots that backups copy from."""
        return f"{self.path}/snapshots"

    def announce(self, tcp: str, pid: int) -> None:
        """Write down where this directory is served, for readers that find it locked; `close` takes it back.

        Args:
            tcp: ``HOST:PORT`` of the native protocol as this machine reaches it; empty if nobody listens there.
            pid: Process id of the server.
        """
        replace_json(self._files, f"{self.path}/SERVER", {"tcp": tcp, "pid": pid})

    def close(self) -> None:
        """Release the lock."""
        try:
            _remove_server_file(self._files, self.path)
        finally:
            self.lock.release()


def open_directory(files: FileSystem, path: str) -> DataDirectory:
    """Lock a data directory and make it one if it is empty or not there.

    Raises:
        DataDirectoryError: Another process uses it, it cannot be written, or it holds something else.
        FormatVersionError: A newer program made it.
        CorruptionError: Its FORMAT file cannot be read.
    """
    try:
        files.mkdir(path)
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {path} cannot be made: {error.strerror}; choose another path"
        ) from error
    lock = files.lock(path)
    try:
        _remove_server_file(files, path)
        node_id = _read_or_write_format(files, path)
        for name in ("journal", "log", "sealed", "sealing", "snapshots"):
            make_durable_directory(files, f"{path}/{name}")
        for name in filter(_SNAPSHOT.fullmatch, files.listdir(f"{path}/snapshots")):
            remove_snapshot(files, f"{path}/snapshots/{name}")
    except BaseException as error:
        lock.release()
        if isinstance(error, OSError):
            raise DataDirectoryError(f"data directory {path} cannot be used: {error}; check its permissions") from error
        raise
    return DataDirectory(path, node_id, lock, files)


def _read_or_write_format(files: FileSystem, path: str) -> str:
    name = f"{path}/FORMAT"
    if not files.exists(name):
        others = [entry for entry in files.listdir(path) if entry not in ("LOCK", "FORMAT.new", "lost+found")]
        if "BACKUP" in others:
            raise DataDirectoryError(f"{path} holds backups; make a data directory of one with `journal restore` first")
        if "RESTORING" in others:
            raise DataDirectoryError(f"{path} is only partly restored; run `journal restore` once more, to its end")
        if others:
            raise DataDirectoryError(
                f"{path} is not a data directory: it has no FORMAT file but holds {', '.join(others[:3])}; "
                f"choose an empty directory"
            )
        return _write_format(files, path)
    return read_format(files, path)


def read_format(files: FileSystem, path: str) -> str:
    """Id of the node whose data directory this is; nothing is changed.

    Raises:
        FormatVersionError: A newer program made it.
        CorruptionError: Its FORMAT file cannot be read.
    """
    way_out = "start the newer version of the server"
    return read_marker(files, f"{path}/FORMAT", kind="data layout", version=LAYOUT_VERSION, way_out=way_out)


def segment_directories(files: FileSystem, path: str) -> list[str]:
    """Directories of segment files below a data directory, sorted, such as ``log/0a``; not what else lies there."""
    there = files.listdir(path)
    return [
        f"{name}/{below}"
        for name, pattern in _SEGMENT_DIRECTORIES
        if name in there  # an older program may have made it without
        for below in files.listdir(f"{path}/{name}")
        if pattern.fullmatch(below)
    ]


def remove_snapshot(files: FileSystem, path: str) -> None:
    """Remove a snapshot, or what a crash left of one."""
    there = files.listdir(path)
    for name in ("log", "sealed"):
        for directory in files.listdir(f"{path}/{name}") if name in there else ():
            _remove_flat(files, f"{path}/{name}/{directory}")
    for name in there:
        if name == "FORMAT":
            files.remove(f"{path}/{name}")
        else:
            _remove_flat(files, f"{path}/{name}")
    files.remove_directory(path)


def _remove_flat(files: FileSystem, directory: str) -> None:
    for name in files.listdir(directory):
        files.remove(f"{directory}/{name}")
    files.remove_directory(directory)


def _write_format(files: FileSystem, path: str) -> str:
    node_id = secrets.token_hex(8)
    write_marker(files, f"{path}/FORMAT", version=LAYOUT_VERSION, node_id=node_id)
    files.sync_directory(path)
    return node_id


def _remove_server_file(files: FileSystem, path: str) -> None:
    # One that a killed server left would send readers to nobody, or to somebody else.
    for name in ("SERVER", "SERVER.new"):
        if files.exists(f"{path}/{name}"):
            files.remove(f"{path}/{name}")
