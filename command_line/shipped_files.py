"""Where the files of an installation are that are no modules (configuration, units, documents), and printing one.

A wheel installs them below ``share/journal-engine`` of the environment; a checkout has them at its top.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from command_line.boundary import CommandError, UsageError
from command_line.output import write_lines

DIRECTORIES: Final = ("conf", "docs")

_DISTRIBUTION: Final = "journal-engine"
_MARK: Final = "conf/journal.toml"


def shipped_path(name: str) -> Path:
    """The path of a shipped file or directory, such as ``conf/broker.toml`` or ``docs``.

    Raises:
        CommandError: The installation has no such files: only the modules were copied.
    """
    for root in (_checkout(), _installed()):
        if root is not None and (found := root / name).exists():
            return found
    raise CommandError(
        f"this installation has no {name}: the wheel installs it into share/{_DISTRIBUTION} of its environment; "
        f"install the wheel with pip into an environment instead of copying modules"
    )


def _checkout() -> Path | None:
    root = Path(__file__).parents[1]
    return root if (root / "pyproject.toml").exists() and (root / _MARK).exists() else None


def _installed() -> Path | None:
    """Found by the installation's own record, since environments have different directories for shared files."""
    try:
        files = distribution(_DISTRIBUTION).files or ()
    except PackageNotFoundError:
        return None
    for file in files:
        if file.as_posix().endswith(f"share/{_DISTRIBUTION}/{_MARK}"):
            return Path(str(file.locate())).resolve().parents[1]
    return None


def print_default_file(name: str, *, program: str, default: bool) -> None:
    """Print a shipped configuration file.

    Args:
        name: Path of the file, such as ``conf/journal.toml``.
        program: The program of these settings, for the message.
        default: Whether ``--default`` was given.

    Raises:
        UsageError: ``--default`` was not given.
        CommandError: The file is missing in the installation.
    """
    if not default:
        raise UsageError(f"say what to print: `{program} config --default` prints every setting with its default")
    write_lines(shipped_path(name).read_bytes().splitlines())
