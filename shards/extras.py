"""The install command of optional packages, for messages about missing ones.

The project is installed from a checkout or a wheel whose location a running program does not know. So the command names
the missing packages themselves, as the installed distribution declares them for its extra.
"""

from __future__ import annotations

import re
from typing import Final

_DISTRIBUTION: Final = "journal-engine"
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9._-]+)(\[[^\]]*\])?\s*([^;]*?)\s*(?:;(.*))?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def install_command(extra: str) -> str:
    """The command that installs the missing packages of an extra; all packages of the extra if none is missing.

    Without an installed distribution, which declares the packages, it is the command for a checkout.
    """
    # Imported late: it takes as long as the rest of a short command, and only these messages need it.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        declared = requires(_DISTRIBUTION) or ()
    except PackageNotFoundError:
        declared = ()
    needed = {}
    for requirement in declared:
        match = _REQUIREMENT.fullmatch(requirement)
        named = _EXTRA.search(match[4]) if match is not None and match[4] else None
        if match is not None and named is not None and named[1] == extra:
            needed[match[1]] = f"{match[1]}{match[2] or ''}{match[3]}"
    missing = [text for name, text in needed.items() if not _is_installed(name)]
    wanted = missing or list(needed.values())
    return "pip install " + (" ".join(f"'{text}'" for text in sorted(wanted)) or f"'.[{extra}]'")


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
