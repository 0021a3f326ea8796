"""Versions of the Delta table over shared files: which files one has, for readers of a tree and for time travel.

A data directory tells more than its table: which rows are dead, and what is not sealed. So its newest state is read by
the segments (`spark_export.live_shards`), an older one by a version.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from shards.extras import install_command
from shards.topics.topic_filters import matches_all_between
from spark_export.errors import UnreadableError
from spark_export.file_access import FileTree
from spark_export.sealed_files import DELTA_LOG, SharedName, parse_shared


@attrs.frozen(slots=True)
class VersionFiles:
    """The files of a version.

    Attributes:
        version: The version.
        rows: By file: number of its rows, live or not.
        visible: Files without a shard or topic whose name begins with ``$``.
    """

    version: int
    rows: Mapping[SharedName, int]
    visible: frozenset[SharedName]


def newest_files(tree: FileTree) -> VersionFiles | None:
    """The files of the newest version; None if the tree has no table, or is not on this machine.

    Elsewhere the files are listed: the library for Delta tables reaches other file systems by settings of its own.

    Raises:
        UnreadableError: The log of the table cannot be read.
    """
    if not tree.is_local or DELTA_LOG not in tree.names():
        return None
    try:
        return _files(tree, None)
    except ModuleNotFoundError:
        # Without the library the files are listed, as where there is no table.
        return None


def version_files(tree: FileTree, version: int) -> VersionFiles:
    """The files of a version.

    Raises:
        UnreadableError: There is no such version, or no table.
    """
    try:
        return _files(tree, version)
    except ModuleNotFoundError as error:
        raise UnreadableError(
            f"deltalake is not installed, which reads versions of a table; `{install_command('delta')}` installs it"
        ) from error


def files_are_gone(version: int, path: str) -> UnreadableError:
    """The error for a version of which a file was removed."""
    return UnreadableError(
        f"version {version} of the Delta table needs {path}, which is gone: the server removes the files of older "
        "versions some time after it has written them again (`conversion.delta_grace_s`); read a newer version"
    )


def _files(tree: FileTree, version: int | None) -> VersionFiles:
    # Imported late: it takes longer than a short query, and most need no table.
    from shards.delta.library import files_of_version
    from shards.delta.log_library import UnreadableTableError

    try:
        found = files_of_version(_url(tree.where), version)
    except UnreadableTableError as error:
        wanted = "the newest version" if version is None else f"version {version}"
        raise UnreadableError(
            f"cannot read {wanted} of the Delta table in {tree.where}: {error}{_newest(tree) if version else ''}"
        ) from error
    rows: dict[SharedName, int] = {}
    visible = set()
    for file in found.files:
        name = parse_shared(file.path)
        if name is None:
            raise UnreadableError(
                f"the Delta table in {tree.where} has {file.path!r}, which is no shared file of a journal"
            )
        rows[name] = file.rows
        if matches_all_between((file.shards, file.topics)):
            visible.add(name)
    return VersionFiles(found.version, rows, frozenset(visible))


def _newest(tree: FileTree) -> str:
    try:
        return f"; the newest version is {_files(tree, None).version}"
    except UnreadableError:
        return ""


def _url(where: str) -> str:
    """The name that the library has for a path: it knows one scheme for S3."""
    scheme, separator, rest = where.partition("://")
    return f"s3://{rest}" if separator and scheme in ("s3a", "s3n") else where
