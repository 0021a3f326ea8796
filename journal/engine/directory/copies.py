"""Data directories that are copies of a shared log: which may begin with a checkpoint of it, and emptying one."""

from __future__ import annotations

from journal.engine.directory.data_directory import MARKER, open_directory
from shards.delta.log_files import remove_log
from shards.seams.file_system import FileSystem

_CURRENT = "CURRENT"


def is_unused(files: FileSystem, path: str) -> bool:
    """Whether an open data directory has neither views nor a journal."""
    has_journal = any(name.endswith(".jnl") for name in files.listdir(f"{path}/journal"))
    return not has_journal and not files.exists(f"{path}/state/{_CURRENT}")


def empty_copy(files: FileSystem, path: str, store_id: str) -> None:
    """Remove the views, the journal and all segments of a copy, which is then as if it had just been created.

    The journal goes first: a start that finds views without it reads what is missing in the log of the store, and one
    that finds neither begins anew. So a crash in between does no harm.

    Raises:
        DataDirectoryError: Another process uses it, or it is no copy of this store.
        OSError: The disk refused.
    """
    directory = open_directory(files, path, store_id)
    try:
        held = directory.files
        _remove_files(held, f"{path}/journal")
        if held.exists(f"{path}/state/{_CURRENT}"):
            held.remove(f"{path}/state/{_CURRENT}")
            held.sync_directory(f"{path}/state")
        remove_log(held, f"{path}/sealed")
        _remove_files(held, f"{path}/state")
        for part in ("log", "sealed"):
            for name in _names(held, f"{path}/{part}"):
                _remove_files(held, f"{path}/{part}/{name}")
                held.sync_directory(f"{path}/{part}/{name}")
    finally:
        directory.close()


def _remove_files(files: FileSystem, directory: str) -> None:
    for name in _names(files, directory):
        files.remove(f"{directory}/{name}")
    files.sync_directory(directory)


def _names(files: FileSystem, directory: str) -> list[str]:
    others = {MARKER, f"{MARKER}.new", "lost+found"}
    return [name for name in files.listdir(directory) if name not in others]
