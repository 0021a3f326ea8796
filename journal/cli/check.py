"""`journal check` and `journal compact`: check a data directory that no server uses; make it smaller."""

from __future__ import annotations

from command_line.app import JsonOption
from command_line.output import progress, write_json, write_text
from shards.quantities import counted, format_size


def check(directory: str, /, *, json: JsonOption = False) -> int:
    """Check a whole data or backup directory offline and list its damage; the exit status is 1 if there is any.

    Notes are no damage: the torn end of a last write, which was never acknowledged, or files that no record refers to.

    Args:
        directory: Data directory; no server may be running on it. Or a backup directory.
        json: Print the report as one JSON object.
    """
    from journal.check import check_directory

    with progress("bytes checked") as tick:
        report = check_directory(directory, tick)
    if json:
        write_json(report)
    else:
        for damage in report.damages:
            write_text(str(damage))
        for each in report.notes:
            write_text(f"note: {each}")
        write_text(report.summary)
    return 1 if report.damages else 0


def compact(directory: str, /, *, config: str | None = None, json: JsonOption = False) -> None:
    """Remove data that no record of a data directory needs any more, and rewrite its views without deleted entries.

    It checks the directory first, and changes nothing if it is damaged. Parquet segments are not rewritten.

    Args:
        directory: Data directory; no server may be running on it.
        config: The server's configuration file.
        json: Print the result as one JSON object.
    """
    import trio

    from journal.compaction import compact as compact_directory
    from journal.settings.server_file import load_config

    wanted = load_config(config, {})
    with progress("bytes checked") as tick:
        compacted = trio.run(compact_directory, directory.rstrip("/") or "/", wanted, tick)
    if json:
        write_json(compacted)
        return
    write_text(
        f"{compacted.directory}: gained {format_size(max(compacted.gained_bytes, 0))}; "
        f"{counted(compacted.removed_files, 'file')} of {format_size(compacted.removed_bytes)} removed, "
        f"views from {format_size(compacted.views_before_bytes)} to {format_size(compacted.views_after_bytes)}"
    )
