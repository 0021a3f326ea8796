"""What `journal config` and `journal-broker config` do: print a shipped configuration file as it is."""

from __future__ import annotations

from command_line.boundary import UsageError
from command_line.output import write_lines
from command_line.shipped_files import shipped_path


def print_default_file(name: str, *, program: str, default: bool) -> None:
    """Print a shipped configuration file.

    Args:
        name: Of the file, as ``conf/journal.toml``.
        program: Whose settings these are, for the message.
        default: Whether ``--default`` was given.

    Raises:
        UsageError: It was not given.
        CommandError: The installation lacks the file.
    """
    if not default:
        raise UsageError(f"say what to print: `{program} config --default` prints every setting with its default")
    write_lines(shipped_path(name).read_bytes().splitlines())
