"""What a reader must know of the machine to compare figures, and which errors end one measurement but not all."""

from __future__ import annotations

import os
import platform
import sysconfig
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.load import LoadError
from benchmarks.processes import ProcessError
from benchmarks.stage import file_system_of
from shards import compiled
from shards.errors import StorageError

EXPECTED_ERRORS: Final = (LoadError, ProcessError, StorageError, OSError, ExceptionGroup, trio.TooSlowError)


def machine(directory: Path) -> dict[str, Any]:
    """Properties of the machine, with the file system of a directory."""
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": f"{platform.python_version()} ({build_of_python()})",
        "hot loops": compiled.DESCRIPTION,
        "file system": file_system_of(directory),
    }


def build_of_python() -> str:
    """How this Python was configured: with profile-guided and link-time optimisation, it is faster by a fifth and more.

    Debian optimises its own by other means, which no setting of that Python shows.
    """
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    kinds = {"PGO": "--enable-optimizations", "LTO": "--with-lto"}
    found = [kind for kind, argument in kinds.items() if argument in arguments and f"{argument}=no" not in arguments]
    return f"configured with {' and '.join(found)}" if found else "configured without PGO and LTO"
