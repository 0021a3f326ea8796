"""The files of a Delta log: putting a commit there durably, once, and setting aside a log that cannot be used."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from shards.seams.file_system import FileSystem

LOG: Final = "_delta_log"
"""The directory of the log, in that of the table."""
ASIDE: Final = "_delta_log.unreadable"
"""Where a log is moved that cannot be used."""

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\..+)?\.parquet")
_UNFINISHED = re.compile(r"_commit_.*\.tmp")


class CommitConflictError(Exception):
    """Another process has made this version of the table."""


def put_commit(files: FileSystem, root: str, version: int, content: bytes) -> None:
    """Put a commit into the log, whole and durably; afterwards every reader sees it.

    A crash leaves the commit or nothing, and perhaps an unfinished file. That one stays also if the commit is there and
    could not be synced: `finish` takes care of both.

    Raises:
        CommitConflictError: There is a commit of this version already.
        OSError: The disk refused. Whether the commit is there has to be looked up.
    """
    directory = f"{root}/{LOG}"
    aside = _write_aside(files, directory, version, content)
    try:
        # A link, unlike a rename, replaces nothing.
        files.link(aside, f"{directory}/{version:020}.json")
    except OSError as error:
        files.remove(aside)
        if isinstance(error, FileExistsError):
            raise CommitConflictError(f"{directory} has version {version} already") from error
        raise
    files.sync_directory(directory)
    files.remove(aside)


def finish(files: FileSystem, root: str) -> None:
    """Finish what commits left that a crash or the disk interrupted, of this program and of the library.

    If the newest commit was perhaps not synced, its name is made once more: after a failed sync a directory may count
    as written though it is not, so that syncing it again would prove nothing.

    Raises:
        OSError: The disk refused; another call tries again.
    """
    directory = f"{root}/{LOG}"
    names = list(_names(files, directory))
    newest = max(filter(_COMMIT.fullmatch, names), default="")
    for name in filter(_UNFINISHED.fullmatch, names):
        if newest and name.startswith(f"_commit_{newest.partition('.')[0]}_"):
            _put_again(files, directory, newest)
        with suppress(FileNotFoundError):
            files.remove(f"{directory}/{name}")


def _put_again(files: FileSystem, directory: str, name: str) -> None:
    file = files.open(f"{directory}/{name}", write=False)
    try:
        content = bytes(file.pread(file.size(), 0))
    finally:
        file.close()
    # A rename of a file to another name of the same one would do nothing.
    files.rename(_write_aside(files, directory, int(name.partition(".")[0]), content), f"{directory}/{name}")
    files.sync_directory(directory)


def _write_aside(files: FileSystem, directory: str, version: int, content: bytes) -> str:
    """Write a commit to a file that is not in the log yet, and return its path."""
    path = f"{directory}/_commit_{version:020}_{secrets.token_hex(4)}.tmp"
    file = files.open(path, create=True)
    try:
        file.pwritev([content], 0)
        file.fsync()
    finally:
        file.close()
    return path


def exists(files: FileSystem, root: str) -> bool:
    """Whether there is a log with a commit or a checkpoint."""
    return any(_COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in _names(files, f"{root}/{LOG}"))


def remove_log(files: FileSystem, root: str) -> None:
    """Remove the log, the newest commit first: what is left in between, or by a crash, is an earlier table.

    Nothing happens if there is none.

    Raises:
        OSError: The disk refused; another call continues.
    """
    directory = f"{root}/{LOG}"
    names = list(_names(files, directory))
    # The library's pointer to the newest checkpoint must not lead to one that is gone.
    for name in sorted(names, key=lambda name: (name.startswith("_"), name), reverse=True):
        files.remove(f"{directory}/{name}")
    if names:
        files.sync_directory(directory)


def is_in_the_way(files: FileSystem, root: str) -> bool:
    """Whether there is something else in place of the directory of the log: a file, or a link that leads nowhere.

    Raises:
        OSError: The disk refused.
    """
    try:
        files.listdir(f"{root}/{LOG}")
    except NotADirectoryError:
        return True
    except FileNotFoundError:
        return LOG in files.listdir(root)
    return False


def make_directory(files: FileSystem, root: str) -> None:
    """Make the directory of the log, durably."""
    files.mkdir(f"{root}/{LOG}")
    files.sync_directory(root)


def removal_times(files: FileSystem, root: str, paths: Iterable[str]) -> dict[str, int]:
    """Return when commits removed some files from the table, in milliseconds since 1970.

    The newest commits are read first, and none before those that answer the question. Files of which no commit in the
    log says it are missing in the answer.

    Args:
        paths: Paths of the files, relative to the table.

    Raises:
        OSError: A commit cannot be read.
    """
    directory = f"{root}/{LOG}"
    wanted = set(paths)
    found: dict[str, int] = {}
    names = sorted(filter(_COMMIT.fullmatch, _names(files, directory)), reverse=True) if wanted else []
    for name in names:
        for action in read_commit(files, root, int(name.partition(".")[0])):
            removed = action.get("remove")
            if isinstance(removed, dict) and (path := removed.get("path")) in wanted:
                found.setdefault(path, int(removed.get("deletionTimestamp", 0)))
        if len(found) == len(wanted):
            break
    return found


def read_commit(files: FileSystem, root: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit; none if the log does not have it any more, or it is damaged.

    Raises:
        OSError: It cannot be read.
    """
    path = f"{root}/{LOG}/{version:020}.json"
    try:
        file = files.open(path, write=False)
    except FileNotFoundError:
        return []
    try:
        content = bytes(file.pread(file.size(), 0))
    finally:
        file.close()
    try:
        actions = [msgspec.json.decode(line) for line in content.splitlines()]
    except msgspec.DecodeError:
        return []
    return [action for action in actions if isinstance(action, dict)]


def read_all(files: FileSystem, root: str) -> None:
    """Read every file of the log.

    Raises:
        OSError: One cannot be read.
    """
    directory = f"{root}/{LOG}"
    for name in files.listdir(directory):
        if _COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name):
            file = files.open(f"{directory}/{name}", write=False)
            try:
                file.pread(file.size(), 0)
            finally:
                file.close()


def sync_newest(files: FileSystem, root: str, version: int) -> None:
    """Make the newest commit durable: the process that put it there may have ended before its sync."""
    directory = f"{root}/{LOG}"
    path = f"{directory}/{version:020}.json"
    if files.exists(path):
        _sync(files, path)
    files.sync_directory(directory)


def sync_checkpoints(files: FileSystem, root: str) -> None:
    """Make the newest checkpoint durable, which the library writes without syncing it."""
    directory = f"{root}/{LOG}"
    newest = newest_checkpoint(files, root)
    for name in files.listdir(directory):
        match = _CHECKPOINT.fullmatch(name)
        if name == "_last_checkpoint" or (match is not None and int(match[1]) == newest):
            _sync(files, f"{directory}/{name}")
    files.sync_directory(directory)


def newest_checkpoint(files: FileSystem, root: str) -> int:
    """Version of the newest checkpoint; -1 if there is none."""
    found = [_CHECKPOINT.fullmatch(name) for name in _names(files, f"{root}/{LOG}")]
    return max((int(match[1]) for match in found if match is not None), default=-1)


def move_aside(files: FileSystem, root: str) -> str:
    """Move a log aside that cannot be used, and return where it is now. One that was moved there before is removed."""
    target = f"{root}/{ASIDE}"
    _remove_tree(files, target)
    files.rename(f"{root}/{LOG}", target)
    files.sync_directory(root)
    return target


def _sync(files: FileSystem, path: str) -> None:
    file = files.open(path)
    try:
        file.fsync()
    finally:
        file.close()


def _names(files: FileSystem, directory: str) -> Iterator[str]:
    yield from files.listdir(directory) if files.exists(directory) else ()


def _remove_tree(files: FileSystem, path: str) -> None:
    """Remove a directory with all that is in it, a file, or a link but not what it leads to."""
    try:
        files.remove(path)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        for name in files.listdir(path):
            _remove_tree(files, f"{path}/{name}")
        files.remove_directory(path)
