"""`journal check`: every checksum and invariant of a data directory that no server is using."""

from __future__ import annotations

from command_line.app import JsonOption
from command_line.output import progress, write_json, write_text


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
