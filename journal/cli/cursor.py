"""`journal cursor ...`: named durable positions in a shard."""

from __future__ import annotations

from command_line.app import JsonOption
from command_line.boundary import CommandError
from command_line.output import write_json, write_table, write_text
from journal.cli.connection import DEFAULT_SERVER, ServerOption, ask


def list_command(shard: str, /, *, json: JsonOption = False, server: ServerOption = DEFAULT_SERVER) -> None:
    """List a shard's cursors.

    Args:
        shard: Name of the shard.
    """
    cursors = ask(server, lambda client: client.list_cursors(shard))
    if json:
        for cursor in cursors:
            write_json(cursor)
        return
    write_table(
        ("cursor", "offset", "version"),
        ((cursor.name, str(cursor.offset), str(cursor.version)) for cursor in cursors),
        numeric=("offset", "version"),
    )


def get_command(shard: str, name: str, /, *, json: JsonOption = False, server: ServerOption = DEFAULT_SERVER) -> None:
    """Print the offset of one cursor.

    Args:
        shard: Name of the shard.
        name: Name of the cursor.
    """
    cursor = ask(server, lambda client: client.get_cursor(shard, name))
    if cursor is None:
        raise CommandError(f"shard {shard!r} has no cursor {name!r}; `journal cursor list {shard}` lists all cursors")
    if json:
        write_json(cursor)
    else:
        write_text(str(cursor.offset))


def set_command(
    shard: str,
    name: str,
    offset: int,
    /,
    *,
    expected_version: int | None = None,
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Set a cursor durably; create it if it does not exist.

    Args:
        shard: Name of the shard.
        name: Name of the cursor.
        offset: Next offset that its owner will read.
        expected_version: Fail unless the cursor has this version; 0 means it must not exist.
    """
    cursor = ask(server, lambda client: client.commit_cursor(shard, name, offset, expected_version=expected_version))
    if json:
        write_json(cursor)
    else:
        write_text(f"{cursor.name}: offset {cursor.offset}, version {cursor.version}")
