"""The data directory: its layout, its format version, and the node that it belongs to.

::

    LOCK        held by the process that uses the directory
    FORMAT      JSON: version of the layout, random id of the node, whether the directories below were all made, and
                the store whose log the directory has a copy of, if it has one
    SERVER      JSON: where the server that uses the directory listens, and its process id; only while it does
    journal/    journal files
    log/        log segments, in 256 directories
    sealed/     Parquet files with the segments of many shards, a directory for each UTC day
    sealing/    Parquet segments that are being written; emptied at the start
    state/      the views (RocksDB)
    snapshots/  the snapshot that a backup is copying, mostly hard links; emptied at the start
    reading/    only a LOCK, held by a command that opened the directory for a moment to read it; see
    `journal.engine.directory.reader_lock`

``journal/``, ``log/`` and ``sealed/`` each hold a marker ``.node`` with the id of the node: a directory that is empty,
because its file system is not mounted, has no marker, so the start is refused. The views store the node id themselves.
"""

from __future__ import annotations

import re
import secrets

import attrs

from journal.engine.directory.json_files import read_json, read_marker, replace_json, write_json
from shards.errors import CorruptionError, DataDirectoryError, way_out
from shards.seams.file_system import FileSystem, Lock, make_durable_directory
from shards.seams.held_files import HeldFiles

LAYOUT_VERSION = 3
"""The newest layout that this program knows: that of a directory whose log lies in a log store."""

LAYOUT_OF_A_NODE = 2
"""The layout of a directory that has its whole journal in it."""

LOG_POSITION = "log-position"
"""Name of the file in *journal/* that says where the log of a store goes on."""

MARKER = ".node"
MARKED = ("journal", "log", "sealed")
"""Directories that hold a marker."""

_OTHERS = ("sealing", "snapshots")
_PARTS = (*MARKED, *_OTHERS)
"""Directories that a start makes; the store of the views makes ``state/``."""

_MAY_BE_MOUNTS = (*MARKED, "state")

_NODE_ID_DIGITS = 16

GONE = ".gone"
_SNAPSHOT = re.compile(rf"[0-9a-f]{{8}}({re.escape(GONE)})?")
_SEGMENT_DIRECTORIES = (
    ("log", re.compile("[0-9a-f]{2}")),
    ("sealed", re.compile(r"date=\d{4}-\d\d-\d\d")),
)


@attrs.define(slots=True)
class DataDirectory:
    """An open data directory; `close` releases its lock.

    Attributes:
        files: The file system. It reaches the directories that were opened here, also when others are in their places.
        store_id: The store whose log the directory has a copy of, 32 hexadecimal digits; empty for a node on its own.
        was_complete: It already was a complete directory of this layout when it was opened: its journal and views
            were used together before, so both have to exist.
    """

    path: str
    node_id: str
    store_id: str
    lock: Lock
    was_complete: bool
    files: HeldFiles

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

    def complete(self) -> None:
        """Record that all parts of the directory exist and that the views know its journal. Durable on return.

        From now on a start is refused if the journal lacks its markers or if the views do not know the journal. A start
        that is killed before this is repeated from the beginning, as often as needed.
        """
        if not self.was_complete:
            _write_format(self.files, self.path, self.node_id, self.store_id, complete=True)

    def announce(self, tcp: str, pid: int) -> None:
        """Write the address at which this directory is served, for readers that find it locked; `close` removes it.

        Args:
            tcp: ``HOST:PORT`` of the native protocol as this machine reaches it; empty without such a listener.
            pid: Process id of the server.
        """
        replace_json(self.files, f"{self.path}/SERVER", {"tcp": tcp, "pid": pid})

    def close(self) -> None:
        """Release the lock."""
        try:
            _remove_server_file(self.files, self.path)
        finally:
            self.files.close()
            self.lock.release()


def open_directory(files: FileSystem, path: str, store_id: str | None = "") -> DataDirectory:
    """Lock a data directory. If it is empty or does not exist, create it.

    Args:
        files: The file system.
        path: The directory.
        store_id: The store whose log it is to have a copy of; empty for a node on its own, None for either.

    Raises:
        DataDirectoryError: Another process uses it, it cannot be written, it contains something else, or it belongs to
            another store.
        FormatVersionError: A newer program made it.
        CorruptionError: Its FORMAT file cannot be read.
    """
    try:
        files.mkdir(path)
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {path} cannot be made: {error.strerror or error}; {way_out(error)}, or choose another path"
        ) from error
    # Before it is locked: nothing is left behind in a directory of another program.
    _refuse_foreign(files, path)
    lock = files.lock(path)
    try:
        _remove_server_file(files, path)
        if not files.exists(f"{path}/FORMAT"):
            _require_empty(files, path)
            # All directories of a store are of one node for clients: any of its servers continues what another began.
            node_id = store_id[:_NODE_ID_DIGITS] if store_id else secrets.token_hex(_NODE_ID_DIGITS // 2)
            _write_format(files, path, node_id, store_id or "", complete=False)
        node_id = read_format(files, path)
        found_store = read_store_id(files, path)
        if store_id is not None:
            require_store(path, found_store, store_id)
        was_complete = is_complete(files, path)
        if was_complete:
            check_markers(files, path, node_id)
        _refuse_files_of_shards(files, path)
        for name in _PARTS:
            make_durable_directory(files, f"{path}/{name}")
        if not was_complete:
            _write_format(files, path, node_id, found_store, complete=False)
            write_markers(files, path, node_id)
        for name in filter(_SNAPSHOT.fullmatch, files.listdir(f"{path}/snapshots")):
            remove_snapshot(files, f"{path}/snapshots/{name}")
        held = _hold(files, path, node_id)
    except BaseException as error:
        lock.release()
        if isinstance(error, OSError):
            raise DataDirectoryError(
                f"data directory {path} cannot be used: {_what_failed(error)}; {way_out(error)}, then start again"
            ) from error
        raise
    return DataDirectory(path, node_id, found_store, lock, was_complete, held)


def store_of(files: FileSystem, path: str) -> str | None:
    """The store that a data directory has a copy of, which may be in use; empty for a node on its own.

    Returns:
        None if there is no data directory yet.

    Raises:
        FormatVersionError: A newer program made it.
        CorruptionError: Its FORMAT file cannot be read.
    """
    if not files.exists(f"{path}/FORMAT"):
        return None
    read_format(files, path)
    return read_store_id(files, path)


def require_store(path: str, found: str, wanted: str | None) -> None:
    """Refuse a directory of another store, or of none.

    Args:
        path: The directory.
        found: The store that it belongs to; empty for a node on its own.
        wanted: The same of the server; None if there is no store yet at the address that it was given.

    Raises:
        DataDirectoryError: It is one.
    """
    if found == wanted:
        return
    if not found:
        raise DataDirectoryError(
            f"data directory {path} belongs to a server on its own, not to a store (--store): start the server without "
            "--store, or choose an empty directory"
        )
    if wanted is None:
        raise DataDirectoryError(
            f"data directory {path} is a copy of the store {found}, but no store lies at the address of --store: give "
            "the address of that store, or choose an empty directory"
        )
    if not wanted:
        raise DataDirectoryError(
            f"data directory {path} is a copy of the store {found}: start the server with --store and its address, or "
            "choose an empty directory"
        )
    raise DataDirectoryError(
        f"data directory {path} is a copy of the store {found}, not of {wanted}, which lies at the address of --store: "
        "choose an empty directory, or the address of the other store"
    )


def _hold(files: FileSystem, path: str, node_id: str) -> HeldFiles:
    """Hold the directories open, and check them once more: one may have been replaced since it was checked.

    Raises:
        CorruptionError: One has no marker, or that of another node.
    """
    held = HeldFiles(files, path, _PARTS)
    try:
        check_markers(held, path, node_id)
    except BaseException:
        held.close()
        raise
    return held


def _refuse_foreign(files: FileSystem, path: str) -> None:
    """Refuse a directory that is neither empty nor a data directory, without a change to it."""
    if files.exists(f"{path}/FORMAT"):
        return
    try:
        _require_empty(files, path)
    except OSError:
        return  # The steps under the lock report it.
    except DataDirectoryError:
        # Without the lock, another process may just have made the data directory.
        if not files.exists(f"{path}/FORMAT"):
            raise


def _refuse_files_of_shards(files: FileSystem, path: str) -> None:
    """Refuse a data directory with Parquet files of single shards, whose records would be missing.

    Raises:
        DataDirectoryError: There is a directory of such files.
    """
    sealed = f"{path}/sealed"
    names = files.listdir(sealed) if files.exists(sealed) else []
    of_shards = sorted(name for name in names if name.startswith("shard="))
    if of_shards:
        raise DataDirectoryError(
            f"data directory {path} cannot be used: {sealed}/{of_shards[0]} and perhaps others beside it have Parquet "
            f"files of one shard each, which this version does not read; copy the records into a new directory with "
            f"the version that wrote them, or move these directories away if they are not wanted"
        )


def _what_failed(error: OSError) -> str:
    """The reason with the file or directory that it concerns, without Python's error number."""
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _require_empty(files: FileSystem, path: str) -> None:
    others = [
        entry
        for entry in files.listdir(path)
        if entry not in ("LOCK", "FORMAT.new", "lost+found") and not _is_empty_mount(files, path, entry)
    ]
    if "BACKUP" in others:
        raise DataDirectoryError(f"{path} holds backups; make a data directory of one with `journal restore` first")
    if "RESTORING" in others or "RESTORING.new" in others:
        raise DataDirectoryError(f"{path} is only partly restored; run `journal restore` once more, to its end")
    if "CURRENT" in others and any(name.startswith("MANIFEST-") for name in others):
        raise DataDirectoryError(
            f"{path} is not a data directory: it holds a RocksDB database, as the rocksdb: store of earlier versions "
            f"did, which this version does not read; choose an empty directory, and copy what is still wanted with the "
            f"version that wrote it"
        )
    ours = [name for name in others if name in _MAY_BE_MOUNTS]
    if ours:
        # The directory itself may be a mount point, too: its content may be of an earlier use or another mount.
        raise DataDirectoryError(
            f"{path} is not a complete data directory: {', '.join(f'{path}/{name}' for name in ours)} hold files, but "
            f"{path}/FORMAT is missing. If {path} is a file system of its own, mount it; if FORMAT is lost, restore a "
            f"backup with `journal restore`; for a new node choose an empty directory"
        )
    if others:
        raise DataDirectoryError(
            f"{path} is not a data directory: it has no FORMAT file but holds {', '.join(others[:3])}; "
            f"choose an empty directory"
        )


def _is_empty_mount(files: FileSystem, path: str, name: str) -> bool:
    """Whether an entry is an empty directory with a name of the layout: a file system that is already mounted there.

    Raises:
        DataDirectoryError: It has such a name, but its entries cannot be listed, or it is not a directory.
    """
    if name not in _MAY_BE_MOUNTS:
        return False
    directory = f"{path}/{name}"
    try:
        entries = files.listdir(directory)
    except NotADirectoryError as error:
        raise DataDirectoryError(
            f"{path} is not a data directory: it has no FORMAT file, and {directory} is a file; "
            f"choose an empty directory"
        ) from error
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {path} cannot be made: {directory} cannot be listed: {error.strerror or error}; "
            f"{way_out(error)}, or choose an empty directory"
        ) from error
    return not set(entries) - {"lost+found"}


def is_complete(files: FileSystem, path: str) -> bool:
    """Whether a data directory has all of its parts, markers included; False for layout 1 or an unfinished start."""
    content = read_json(files, f"{path}/FORMAT")
    # A directory of layout 1 has no markers yet.
    return (
        isinstance(content, dict)
        and content.get("version") in range(2, 1 + LAYOUT_VERSION)
        and bool(content.get("complete"))
    )


def write_markers(files: FileSystem, path: str, node_id: str) -> None:
    """Write the node's marker into each directory whose absence must be noticed. Durable on return."""
    for name in MARKED:
        replace_json(files, f"{path}/{name}/{MARKER}", {"node_id": node_id})
        files.sync_directory(f"{path}/{name}")


def _way_out_of_loss(files: FileSystem, path: str) -> str:
    if read_store_id(files, path):
        return f"delete {path}: it is a copy, and the server reads the log of the store again"
    return "restore a backup"


def check_markers(files: FileSystem, path: str, node_id: str) -> None:
    """Refuse a data directory in which a directory is missing or belongs to another node.

    Raises:
        CorruptionError: A marker is missing, or names another node.
    """
    for name in MARKED:
        directory = f"{path}/{name}"
        if not files.exists(f"{directory}/{MARKER}"):
            raise CorruptionError(
                directory,
                0,
                f"the directory is missing or is not the one that was used before: it has no marker {MARKER}. If it is "
                f"a file system of its own, mount it; if it is lost, {_way_out_of_loss(files, path)}",
            )
        found = read_json(files, f"{directory}/{MARKER}")
        if found != {"node_id": node_id}:
            raise CorruptionError(
                f"{directory}/{MARKER}",
                0,
                f"the directory belongs to another node: expected {node_id}, found {found}. Mount the one of this node",
            )


def read_format(files: FileSystem, path: str) -> str:
    """Return the id of the node that a data directory belongs to; nothing is changed.

    Raises:
        FormatVersionError: A newer program made it.
        CorruptionError: Its FORMAT file cannot be read.
    """
    newer = "start the newer version of the server"
    return read_marker(files, f"{path}/FORMAT", kind="data layout", version=LAYOUT_VERSION, way_out=newer)


def segment_directories(files: FileSystem, path: str) -> list[str]:
    """Directories of segment files below a data directory, sorted, such as ``log/0a``; other entries are left out."""
    there = files.listdir(path)
    return [
        f"{name}/{below}"
        for name, pattern in _SEGMENT_DIRECTORIES
        if name in there  # an older program may have made it without
        for below in files.listdir(f"{path}/{name}")
        if pattern.fullmatch(below)
    ]


def read_store_id(files: FileSystem, path: str) -> str:
    """The id of the store whose log a data directory has a copy of; empty for a node on its own.

    Raises:
        CorruptionError: Its FORMAT file cannot be read.
    """
    content = read_json(files, f"{path}/FORMAT")
    return str(content.get("store", "")) if isinstance(content, dict) else ""


def drop_store_id(files: FileSystem, path: str) -> None:
    """Make a FORMAT file, which no server uses yet, that of a server on its own. Synced on return.

    Raises:
        CorruptionError: It cannot be read.
    """
    content = read_json(files, path)
    if isinstance(content, dict) and content.pop("store", ""):
        write_json(files, path, {**content, "version": LAYOUT_OF_A_NODE})


def let_go_of_snapshot(files: FileSystem, path: str) -> None:
    """Rename a snapshot, if there is one, and remove it: a program that still copies it finds no file, and not some."""
    if files.exists(path):
        files.rename(path, f"{path}{GONE}")
        remove_snapshot(files, f"{path}{GONE}")


def remove_snapshot(files: FileSystem, path: str) -> None:
    """Remove a snapshot, or what a crash left of one."""
    there = files.listdir(path)
    for name in ("log", "sealed"):
        for entry in files.listdir(f"{path}/{name}") if name in there else ():
            # A crash may have left the marker under its temporary name.
            if entry not in (MARKER, f"{MARKER}.new"):
                _remove_flat(files, f"{path}/{name}/{entry}")
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


def _write_format(files: FileSystem, path: str, node_id: str, store_id: str, *, complete: bool) -> None:
    content: dict[str, object] = {"version": LAYOUT_OF_A_NODE, "node_id": node_id, "complete": complete}
    if store_id:
        # Programs that do not know of stores refuse it.
        content |= {"version": LAYOUT_VERSION, "store": store_id}
    replace_json(files, f"{path}/FORMAT", content)
    files.sync_directory(path)


def _remove_server_file(files: FileSystem, path: str) -> None:
    # The file of a killed server would send readers to an address that is closed, or that another program uses now.
    for name in ("SERVER", "SERVER.new"):
        if files.exists(f"{path}/{name}"):
            files.remove(f"{path}/{name}")
