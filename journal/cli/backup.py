"""`journal backup` and `journal restore`: a copy of a node's files, taken while it runs, and restoring it."""

from __future__ import annotations

import json as json_module
import os
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.boundary import CommandError, UsageError
from command_line.output import progress, write_json, write_text
from journal.cli.connection import ServerOption, connect
from shards.quantities import counted, format_size, plural

if TYPE_CHECKING:
    from journal.backup import BackupResult

DEFAULT_KEEP: Final = 3


def backup(
    directory: str,
    target: str,
    /,
    *,
    keep: int = DEFAULT_KEEP,
    server: ServerOption = "",
    json: JsonOption = False,
) -> None:
    """Copy a data directory into a backup directory, even while its server runs; only new data is copied.

    Everything that was acknowledged as durable before is in it. Run it on the server's machine, as a user that may
    read the data directory. After an interruption run it again: it copies what is missing.

    Args:
        directory: The data directory.
        target: The backup directory, on another disk; created if it does not exist.
        keep: Number of backups to keep; older ones are removed when this one is complete.
        server: The server of the directory; by default the address that the directory itself names.
        json: Print the result as one JSON object.
    """
    if keep < 1:
        raise UsageError(f"--keep {keep}: at least this backup has to be kept; give 1 or more")
    inside, outside = os.path.realpath(target), os.path.realpath(directory)
    if os.path.commonpath([inside, outside]) == outside:
        raise UsageError(
            f"{target} is inside of {directory}, and would be lost with it; name a directory on another disk"
        )
    made = _back_up(directory.rstrip("/") or "/", target.rstrip("/") or "/", keep, server)
    if json:
        write_json(made)
        return
    removed = f", {format_size(made.freed_bytes)} of older ones were removed" if made.freed_bytes else ""
    write_text(
        f"backup {made.number} in {made.backup}: up to lsn {made.lsn}, {counted(made.files, 'file')} of "
        f"{format_size(made.size_bytes)}; {counted(made.copied_files, 'file')} of {format_size(made.copied_bytes)} "
        f"{plural(made.copied_files, 'was', 'were')} new{removed}"
    )


def _back_up(directory: str, target: str, keep: int, server: str) -> BackupResult:
    from journal.backup import newest_lsn
    from journal.engine.directory.data_directory import read_format
    from shards.errors import DataDirectoryError
    from shards.seams.os_file_system import OsFileSystem

    files = OsFileSystem()
    if not files.exists(directory):
        raise DataDirectoryError(f"there is no directory {directory}; name the data directory")
    if not files.exists(f"{directory}/FORMAT"):
        raise DataDirectoryError(f"{directory} is not a data directory: it has no FORMAT file")
    node_id = read_format(files, directory)
    try:
        lock = files.lock(directory)
    except DataDirectoryError as error:
        # A user that may read the directory, but not write into it, needs the server.
        if not isinstance(error.__cause__, BlockingIOError) and not files.exists(f"{directory}/SERVER"):
            raise
        return _back_up_running(server or _server_of(directory), node_id, target, keep)
    try:
        return _copy(directory, target, newest_lsn(files, f"{directory}/journal"), keep)
    finally:
        lock.release()


def _back_up_running(server: str, node_id: str, target: str, keep: int) -> BackupResult:
    """Copy a snapshot that the server holds during the copy."""
    import trio

    from journal.engine.directory.data_directory import read_format
    from shards.seams.os_file_system import OsFileSystem

    async def copy() -> BackupResult:
        async with connect(server) as client:
            snapshot = await client.snapshot()
            try:
                found = read_format(OsFileSystem(), snapshot.path)
            except OSError as error:
                raise CommandError(
                    f"the server at {server} holds its snapshot in {snapshot.path}, which cannot be read here "
                    f"({error.strerror}); run the backup on the server's machine, as a user that may read its files"
                ) from error
            if found != node_id:
                raise CommandError(
                    f"the server at {server} is node {found}, but the directory belongs to node {node_id}; name its "
                    f"own server with --server, or leave the option out"
                )
            # Ctrl-C need not wait: a backup may be stopped at any moment, as by a kill.
            return await trio.to_thread.run_sync(
                _copy, snapshot.path, target, snapshot.lsn, keep, abandon_on_cancel=True
            )

    return trio.run(copy)


def _server_of(directory: str) -> str:
    """Address of the process that uses a directory."""
    try:
        with open(f"{directory}/SERVER", encoding="utf-8") as file:
            server = str(json_module.load(file)["tcp"])
    except (OSError, ValueError, KeyError, TypeError):
        server = ""
    if not server:
        from journal.engine.directory.data_directory import read_store_id
        from shards.seams.os_file_system import OsFileSystem

        if read_store_id(OsFileSystem(), directory):
            raise CommandError(
                f"{directory} is a copy of the log of a store, and its server does not own the store, or not yet; back "
                f"up the directory of the owner, which `journal cluster status` names, on its machine"
            )
        raise CommandError(
            f"{directory} is in use, but by a process that no client can connect to: a server that is just starting or "
            f"stopping, or an embedded one; wait, or stop it and then back up the directory"
        )
    return server


def _copy(source: str, target: str, lsn: int, keep: int) -> BackupResult:
    from journal.backup import Source, back_up
    from shards.seams.clock import SystemClock
    from shards.seams.os_file_system import OsFileSystem

    with progress("bytes compared and copied") as tick:
        return back_up(
            OsFileSystem(), Source(source, lsn), target, now_us=SystemClock().now_us(), keep=keep, progress=tick
        )


def restore(
    source: str,
    directory: str,
    /,
    *,
    number: Annotated[int | None, Parameter(name="--number")] = None,
    json: JsonOption = False,
) -> None:
    """Create a data directory from a backup, and compare every file with its digest.

    After an interruption run it again: it continues where it stopped. Then run `journal serve` on the directory.

    Args:
        source: The backup directory.
        directory: An empty directory, or one that does not exist.
        number: Which backup; by default the newest.
        json: Print the result as one JSON object.
    """
    from journal.backup import restore as restore_backup
    from shards.seams.os_file_system import OsFileSystem

    with progress("bytes restored") as tick:
        restored = restore_backup(
            OsFileSystem(), source.rstrip("/") or "/", directory.rstrip("/") or "/", number=number, progress=tick
        )
    if json:
        write_json(restored)
        return
    write_text(
        f"{restored.directory}: backup {restored.number}, up to lsn {restored.lsn}, "
        f"{counted(restored.files, 'file')} of "
        f"{format_size(restored.size_bytes)}, all digests compared"
    )
    if restored.former_store:
        write_text(
            f"it was a copy of the log of the store {restored.former_store}, and belongs to a server on its own now: "
            "start it without --store"
        )
